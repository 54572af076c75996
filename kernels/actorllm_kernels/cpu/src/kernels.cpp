// The C interface: an engine runs steps of one model on its own threads.
#include "program.h"

#include "pool.h"

namespace {

constexpr int64_t TASK_BYTES = 64 << 10;  // of weights that one task of a product streams
constexpr int64_t TASK_ROWS = 128;        // rows of one task of a product
constexpr int64_t FEW_ROWS = 4;           // rows of one task of the small operations

int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

// A task of attention: queries, and one split of their keys or all (-1).
struct Piece {
    Queries queries;
    int64_t split;
    float* partial;
};

// Partial results of one task that are to be joined.
struct Join {
    Queries queries;
    int64_t num_splits;
    const float* partials;
};

struct Pieces {
    std::vector<Piece> attend;
    std::vector<Join> join;
    std::vector<float> partials;
};

class Engine {
  public:
    Engine(const Op* ops, int num_ops, const Shape& shape, int num_threads)
        : ops_(ops, ops + num_ops),
          shape_(shape),
          tasks_(num_ops),
          strips_(num_ops),
          pool_(num_threads, num_ops, [this](int phase, int64_t task) { run(phases_[phase], task); }) {}

    // Operations [begin, end) of a step, on no more than so many threads.
    void step(const Step& step, int begin, int end, int num_threads) {
        step_ = step;
        cut_attention(num_threads);
        phases_.clear();
        counts_.clear();
        for (int i = begin; i < end; i++) {
            tasks_[i] = count_tasks(ops_[i], i, num_threads);
            if (tasks_[i] == 0) continue;
            if (ops_[i].beside && i > begin && !phases_.empty()) {
                counts_.back() += tasks_[i];
            } else {
                phases_.push_back(i);
                counts_.push_back(tasks_[i]);
            }
        }
        pool_.run(counts_, num_threads > 1);
    }

  private:
    int64_t rows(const Op& op) const { return op.wanted ? step_.num_wanted : step_.num_tokens; }

    int64_t count_tasks(const Op& op, int number, int num_threads) {
        switch (op.kind) {
            case OP_LINEAR: {
                const int64_t strips = pieces(op.outputs, LANES);
                const int64_t bytes = pieces(op.width, GROUP) * strip_block_bytes(op.weights);
                const int64_t by_size = pieces(TASK_BYTES, bytes), by_share = pieces(strips, 4 * num_threads);
                strips_[number] = std::max<int64_t>(1, std::min(by_size, by_share));
                return pieces(strips, strips_[number]) * pieces(rows(op), TASK_ROWS);
            }
            case OP_ATTEND: return (int64_t)pieces_[key(op)].attend.size();
            case OP_JOIN: return (int64_t)pieces_[key(op)].join.size();
            default: return pieces(rows(op), FEW_ROWS);
        }
    }

    // A task of the operation of this number, or of those that run beside it.
    void run(int number, int64_t task) {
        for (; task >= tasks_[number]; number++) task -= tasks_[number];
        const Op& op = ops_[number];
        switch (op.kind) {
            case OP_LINEAR: return multiply_task(op, strips_[number], task);
            case OP_ATTEND: return attend_task(op, pieces_[key(op)].attend[task]);
            case OP_JOIN: {
                const Join& join = pieces_[key(op)].join[task];
                return join_parts(attention(op), join.queries, join.num_splits, join.partials);
            }
        }
        const int64_t end = std::min(rows(op), (task + 1) * FEW_ROWS);
        for (int64_t row = task * FEW_ROWS; row < end; row++) row_of(op, row);
    }

    void row_of(const Op& op, int64_t row) {
        float* target = (float*)op.target + row * op.target_stride;
        const float* source = (const float*)op.source + row * op.source_stride;
        switch (op.kind) {
            case OP_EMBED:
                embed(op.weights, (const uint8_t*)op.packed, pieces(op.width, GROUP), step_.input_ids[row], op.scale,
                      target);
                break;
            case OP_ACTIVATE: {
                const Rows32 from{(const float*)op.source, op.source_stride, op.width, op.bias, op.eps, op.gate};
                activate(from, op.wanted ? step_.wanted[row] : row, op.target, op.activation, spans_of(op.weights), row);
                break;
            }
            case OP_NORM: norm_row(source, op.bias, op.width, op.eps, op.adds, target); break;
            case OP_ROTATE: {
                const int64_t position = step_.positions[row], half = shape_.heads.size / 2;
                const Turn by{shape_.cosines[op.rope] + position * half, shape_.sines[op.rope] + position * half,
                              op.bias, op.k_norm, op.eps, op.scale};
                uint16_t* queries = (uint16_t*)op.target + row * shape_.heads.queries * shape_.heads.padded;
                rotate(source, shape_.heads, by, step_.slot_mapping[op.group * step_.num_tokens + row], queries,
                       cache(op));
                break;
            }
        }
    }

    void multiply_task(const Op& op, int64_t strips_a_task, int64_t task) {
        const int64_t strips = pieces(op.outputs, LANES), across = pieces(strips, strips_a_task);
        const int64_t row = task / across * TASK_ROWS, strip = task % across * strips_a_task;
        const Output out{(float*)op.target, op.target_stride, op.outputs, op.bias, op.adds != 0};
        const Product product{op.weights, op.activation, (const uint8_t*)op.packed, op.source,
                              pieces(op.width, GROUP), out};
        multiply(product, row, std::min(rows(op), row + TASK_ROWS), strip, std::min(strips, strip + strips_a_task));
    }

    // -- attention ---------------------------------------------------------------------------------

    uint16_t* cache(const Op& op) const { return (uint16_t*)((char*)shape_.cache + op.layer * shape_.layer_bytes); }

    Attention attention(const Op& op) const {
        return Attention{shape_.heads, (const uint16_t*)op.source, cache(op),  (float*)op.target,
                         op.target_stride, op.window, op.soft_cap};
    }

    void attend_task(const Op& op, const Piece& piece) {
        if (piece.split < 0) {
            attend(attention(op), piece.queries);
        } else {
            attend_partly(attention(op), piece.queries, piece.split, piece.partial);
        }
    }

    // Layers of one group and one window cut their work in the same way.
    int key(const Op& op) const {
        for (size_t i = 0; i < kinds_.size(); i++)
            if (kinds_[i].group == op.group && kinds_[i].window == op.window) return (int)i;
        return -1;
    }

    void cut_attention(int num_threads) {
        if (kinds_.empty())
            for (const Op& op : ops_)
                if (op.kind == OP_ATTEND && key(op) < 0) kinds_.push_back({op.group, op.window});
        pieces_.resize(kinds_.size());
        for (size_t i = 0; i < kinds_.size(); i++) cut(kinds_[i].group, kinds_[i].window, num_threads, pieces_[i]);
    }

    void cut(int group, int64_t window, int num_threads, Pieces& into) {
        into.attend.clear();
        into.join.clear();
        std::vector<std::pair<size_t, int64_t>> parts;  // where in `attend`, and at which float
        int64_t floats = 0;
        Attention a{};
        a.heads = shape_.heads;
        a.window = window;
        each_queries(group, [&](const Queries& q) {
            const int64_t begin = first_split(a, q), end = end_split(q);
            if (q.count > 1 || end - begin < 2 || num_threads < 2) {
                into.attend.push_back({q, -1, nullptr});
                return;
            }
            into.join.push_back({q, end - begin, (const float*)floats});
            for (int64_t split = begin; split < end; split++) {
                into.attend.push_back({q, split, (float*)floats});
                floats += q.rows() * partial_size(shape_.heads);
            }
        });
        into.partials.resize(floats);
        for (Piece& piece : into.attend)
            if (piece.split >= 0) piece.partial = into.partials.data() + (int64_t)piece.partial;
        for (Join& join : into.join) join.partials = into.partials.data() + (int64_t)join.partials;
    }

    // Rows of the step in pieces of a few tokens, for each key-value head, and for a part of many heads.
    template <class Each>
    void each_queries(int group, Each each) {
        const int64_t shared = shape_.heads.queries / shape_.heads.keys;
        const int64_t most_heads = std::min<int64_t>(shared, MOST_QUERIES), most_tokens = MOST_QUERIES / most_heads;
        for (int64_t row = 0; row < step_.num_rows; row++) {
            const int64_t begin = step_.query_start_loc[row], end = step_.query_start_loc[row + 1];
            const int32_t* blocks = step_.block_table + (group * step_.num_rows + row) * step_.table_width;
            for (int64_t token = begin; token < end; token += most_tokens)
                for (int64_t head = 0; head < shape_.heads.keys; head++)
                    for (int64_t first = 0; first < shared; first += most_heads)
                        each(Queries{blocks, step_.table_width, token, step_.positions[token],
                                     (int)std::min(most_tokens, end - token), (int)head, (int)first,
                                     (int)std::min(most_heads, shared - first)});
        }
    }

    struct AttentionKind {
        int group;
        int64_t window;
    };

    const std::vector<Op> ops_;
    const Shape shape_;
    Step step_{};
    std::vector<int> phases_;  // the first operation of each
    std::vector<AttentionKind> kinds_;
    std::vector<Pieces> pieces_;
    std::vector<int64_t> counts_;          // tasks of each phase
    std::vector<int64_t> tasks_, strips_;  // of each operation; strips that one task takes
    Pool pool_;
};

}  // namespace

extern "C" {

void* actorllm_open(const Op* ops, int num_ops, const Shape* shape, int num_threads) {
    return new Engine(ops, num_ops, *shape, num_threads);
}

void actorllm_close(void* engine) { delete (Engine*)engine; }

void actorllm_step(void* engine, const Step* step, int begin, int end, int num_threads) {
    ((Engine*)engine)->step(*step, begin, end, num_threads);
}

// What Python checks, so that both sides mean the same structures.
int64_t actorllm_sizes(int which) {
    const int64_t sizes[] = {sizeof(Op), sizeof(Shape), sizeof(Step)};
    return sizes[which];
}

int64_t actorllm_activation_bytes(int activation) { return block_size(activation); }
}
