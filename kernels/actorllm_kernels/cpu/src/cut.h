// How the attention of a step is cut into tasks.
#pragma once

#include <vector>

#include "program.h"

// A task: queries, and one split of their keys or all (-1). `turns`: it rotates its token itself.
struct Piece {
    Queries queries;
    int64_t split;
    int64_t partial;  // where its result begins among the partial results
    bool turns;
};

// Partial results of one task that are to be joined.
struct Join {
    Queries queries;
    int64_t num_splits;
    int64_t partials;  // where they begin
};

// The tasks of the layers that have the blocks of one group, and one window.
struct Cut {
    int group;
    int64_t window;
    std::vector<int64_t> tokens;  // that are rotated before
    std::vector<Piece> attend;
    std::vector<Join> join;
    std::vector<float> partials;
    int64_t num_floats;  // of them, in this step

    void renew(const Heads& heads, const Step& step, int num_threads) {
        tokens.clear();
        attend.clear();
        join.clear();
        num_floats = 0;
        int64_t total = 0;
        for (int64_t row = 0; row < step.num_rows; row++) total += step.seq_lens[row];
        // Rows that share blocks find them in the cache when they come one after the other with the same head; other
        // rows read a block's heads, which are neighbours in memory, one after the other.
        const bool by_head = share_blocks(step);
        for (int64_t i = 0; i < step.num_rows * heads.keys; i++) {
            const int64_t row = by_head ? i % step.num_rows : i / heads.keys;
            const int64_t head = by_head ? i / step.num_rows : i % heads.keys;
            // Splits cost: only what would keep one thread long behind the others has them.
            add(heads, step, row, head, num_threads > 1 && (int64_t)step.seq_lens[row] * 4 * num_threads > total);
        }
        partials.resize(num_floats);
    }

  private:
    // Whether most rows begin with the block that the row before begins with.
    bool share_blocks(const Step& step) const {
        const int32_t* first = step.block_table + group * step.num_rows * step.table_width;
        int64_t same = 0;
        for (int64_t row = 1; row < step.num_rows; row++, first += step.table_width)
            same += first[0] >= 0 && first[0] == first[step.table_width];
        return 2 * same > step.num_rows;
    }

    // A row and a key-value head in pieces of a few tokens, and of a part of many heads that share it.
    void add(const Heads& heads, const Step& step, int64_t row, int64_t head, bool in_splits) {
        const int64_t shared = heads.queries / heads.keys;
        const int64_t most_heads = std::min<int64_t>(shared, MOST_QUERIES), most_tokens = MOST_QUERIES / most_heads;
        const int64_t begin = step.query_start_loc[row], end = step.query_start_loc[row + 1];
        const int32_t* blocks = step.block_table + (group * step.num_rows + row) * step.table_width;
        Attention seen{};
        seen.window = window;
        bool turns = false;
        for (int64_t token = begin; token < end; token += most_tokens)
            for (int64_t first = 0; first < shared; first += most_heads) {
                const Queries q{blocks, step.table_width, token, step.positions[token],
                                (int)std::min(most_tokens, end - token), (int)head, (int)first,
                                (int)std::min(most_heads, shared - first)};
                const int64_t num_splits = end_split(q) - first_split(seen, q);
                if (q.count == 1 && in_splits && num_splits > 1) {
                    add_splits(heads, q, first_split(seen, q), num_splits);
                } else {
                    turns = end - begin == 1 && q.heads == shared;
                    attend.push_back({q, -1, 0, turns});
                }
            }
        if (!turns && head == 0)
            for (int64_t token = begin; token < end; token++) tokens.push_back(token);
    }

    void add_splits(const Heads& heads, const Queries& q, int64_t first, int64_t num_splits) {
        join.push_back({q, num_splits, num_floats});
        for (int64_t split = first; split < first + num_splits; split++) {
            attend.push_back({q, split, num_floats, false});
            num_floats += q.rows() * partial_size(heads);
        }
    }
};
