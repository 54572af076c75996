// The C interface: an engine runs steps of one model on its own threads.
#include <exception>

#include "cut.h"
#include "pool.h"

namespace {

constexpr int64_t TASK_BYTES = 256 << 10;  // of weights that one task of a product streams for one row
constexpr int64_t TASK_ROWS = 128;        // rows of one task of a product
constexpr int64_t FEW_ROWS = 4;           // rows of one task of the small operations
constexpr int64_t PRIVATE_ROWS = 48;      // so many rows every thread makes ready for itself

int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

// What one thread has for itself.
struct Private {
    std::vector<char> bytes;  // of a left side: cheaper to make than to wait until all have made their parts
    char* blocks = nullptr;   // the first that begins at a cache line
    uint64_t step = 0;
    int op = -1;
    std::vector<float> sums;

    Sums* room(int64_t count) {
        if ((int64_t)sums.size() < count * STRIP) sums.resize(count * STRIP);
        return (Sums*)sums.data();
    }
};

class Engine {
  public:
    Engine(const Op* ops, int num_ops, const Shape& shape, int num_threads)
        : ops_(ops, ops + num_ops),
          shape_(shape),
          tasks_(num_ops),
          strips_(num_ops),
          privates_(num_threads),
          pool_(num_threads, num_ops,
                [this](Worker& worker, int phase, int64_t task) { run(worker, phases_[phase], task); }) {
        for (const Op& op : ops_)
            if (op.kind == OP_ATTEND && cut_of(op) < 0) cuts_.push_back({(int)op.group, op.window, {}, {}, {}, {}, 0});
    }

    // Operations [begin, end) of a step, on no more than so many threads.
    void step(const Step& step, int begin, int end, int num_threads) {
        step_ = step;
        number_++;
        if (step.likeliest) std::memset(step.likeliest, 0, step.num_wanted * sizeof *step.likeliest);
        for (Cut& cut : cuts_) cut.renew(shape_.heads, step, num_threads);
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
            case OP_ACTIVATE: return rows(op) <= PRIVATE_ROWS ? 0 : pieces(rows(op), FEW_ROWS);
            case OP_LINEAR:
            case OP_GATED: return count_products(op, number, num_threads);
            case OP_ROTATE: return pieces(cuts_[cut_of(op)].tokens.size(), FEW_ROWS);
            case OP_ATTEND: return (int64_t)cuts_[cut_of(op)].attend.size();
            case OP_JOIN: return (int64_t)cuts_[cut_of(op)].join.size();
            default: return pieces(rows(op), FEW_ROWS);
        }
    }

    // Tasks of strips that take long enough to be worth a claim, but let all threads end together.
    int64_t count_products(const Op& op, int number, int num_threads) {
        const int64_t strips = pieces(op.outputs, STRIP);
        const int64_t bytes = blocks_of(op) * strip_block_bytes(op.weights) * (op.kind == OP_GATED ? 2 : 1);
        const int64_t passes = std::max<int64_t>(1, std::min(rows(op), TASK_ROWS) / MOST_ROWS);
        const int64_t by_size = TASK_BYTES / (bytes * passes), by_share = strips / (4 * num_threads);
        strips_[number] = std::max<int64_t>(1, std::min(by_size, by_share));
        return pieces(strips, strips_[number]) * pieces(rows(op), TASK_ROWS);
    }

    // A task of the operation of this number, or of those that run beside it.
    void run(Worker& worker, int number, int64_t task) {
        for (; task >= tasks_[number]; number++) task -= tasks_[number];
        const Op& op = ops_[number];
        switch (op.kind) {
            case OP_LINEAR:
            case OP_GATED: return multiply_task(worker, op, strips_[number], task);
            case OP_ROTATE: return rotate_task(op, task);
            case OP_ATTEND: return attend_task(op, cuts_[cut_of(op)], task);
            case OP_JOIN: {
                const Cut& cut = cuts_[cut_of(op)];
                const Join& join = cut.join[task];
                return join_parts(attention(op), join.queries, join.num_splits, cut.partials.data() + join.partials);
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
                embed(op.weights, (const uint8_t*)op.packed, blocks_of(op), step_.input_ids[row], op.scale, target);
                break;
            case OP_ACTIVATE: activate_row(op, row, op.target); break;
            case OP_NORM: norm_row(source, op.bias, op.width, op.eps, op.adds, target); break;
        }
    }

    // -- products ----------------------------------------------------------------------------------

    int64_t blocks_of(const Op& op) const { return pieces(op.width, GROUP); }

    void activate_row(const Op& op, int64_t row, void* blocks) const {
        const Rows32 from{(const float*)op.source, op.source_stride, op.width, op.bias, op.eps, op.gate};
        const Left left{blocks, op.next_activation, wants_of(op.next_weights), blocks_of(op)};
        activate(from, op.wanted ? step_.wanted[row] : row, left, row);
    }

    const void* left_of(const Op& op, int thread) {
        const Op& maker = ops_[op.left];
        if (maker.kind != OP_ACTIVATE || rows(maker) > PRIVATE_ROWS) return op.source;
        Private& own = privates_[thread];
        if (own.step != number_ || own.op != op.left) {
            const size_t size = pieces(rows(maker), TILE) * blocks_of(maker) * block_size(maker.next_activation);
            if (own.bytes.size() < size + 64) own.bytes.resize(size + 64);
            own.blocks = own.bytes.data() + (-(uintptr_t)own.bytes.data() & 63);
            for (int64_t row = 0; row < rows(maker); row++) activate_row(maker, row, own.blocks);
            own.step = number_;
            own.op = op.left;
        }
        return own.blocks;
    }

    void multiply_task(Worker& worker, const Op& op, int64_t strips_a_task, int64_t task) {
        const int64_t strips = pieces(op.outputs, STRIP), across = pieces(strips, strips_a_task);
        const int64_t row = task / across * TASK_ROWS, first = task % across * strips_a_task;
        const Area area{row, std::min(rows(op), row + TASK_ROWS), first, std::min(strips, first + strips_a_task)};
        const Matrix matrix{(const uint8_t*)op.packed, op.weights, op.activation, blocks_of(op)};
        const void* left = left_of(op, worker.number);
        Sums* sums = privates_[worker.number].room(2 * area.size());
        worker.offer();
        multiply(matrix, left, area, sums);
        if (op.kind == OP_LINEAR) {
            const Output out{(float*)op.target, op.target_stride, op.outputs, op.bias, op.adds != 0};
            if (!worker.keep()) return;
            finish(out, area, sums);
            if (op.wanted && step_.likeliest) rank_rows(out, area, sums);
            return;
        }
        Matrix up = matrix;
        up.packed = (const uint8_t*)op.packed_up;
        multiply(up, left, area, sums + area.size());
        const Left next{op.target, op.next_activation, wants_of(op.next_weights), strips};
        if (worker.keep()) finish_gated(op.gate, next, area, sums, sums + area.size());
    }

    // Only products with the wanted rows are asked for the likeliest outputs.
    void rank_rows(const Output& out, const Area& area, const Sums* sums) {
        for (int64_t row = area.begin; row < area.end; row++) {
            const uint64_t rank = largest_rank(out, area, sums + row - area.begin);
            uint64_t before = __atomic_load_n(&step_.likeliest[row], __ATOMIC_RELAXED);
            while (before < rank && !__atomic_compare_exchange_n(&step_.likeliest[row], &before, rank, true,
                                                                 __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            }
        }
    }

    // -- attention ---------------------------------------------------------------------------------

    char* cache(const Op& op) const { return shape_.cache + op.layer * shape_.layer_bytes; }

    // Layers of one group and one window cut their work in the same way.
    int cut_of(const Op& op) const {
        for (size_t i = 0; i < cuts_.size(); i++)
            if (cuts_[i].group == op.group && cuts_[i].window == op.window) return (int)i;
        return -1;
    }

    void rotate_task(const Op& op, int64_t task) {
        const auto& tokens = cuts_[cut_of(op)].tokens;
        const int64_t end = std::min<int64_t>(tokens.size(), (task + 1) * FEW_ROWS);
        for (int64_t i = task * FEW_ROWS; i < end; i++)
            for (int64_t head = 0; head < shape_.heads.keys; head++) rotate_head(op, tokens[i], head);
    }

    void rotate_head(const Op& op, int64_t token, int64_t head) {
        const int64_t position = step_.positions[token], half = shape_.heads.size / 2;
        const Turn by{shape_.cosines[op.rope] + position * half, shape_.sines[op.rope] + position * half,
                      op.bias, op.k_norm, op.eps, op.scale};
        char* queries = (char*)op.target + token * shape_.heads.queries * query_bytes(shape_.heads);
        rotate((const float*)op.source + token * op.source_stride, shape_.heads, by, head,
               step_.slot_mapping[op.group * step_.num_tokens + token], queries, cache(op));
    }

    Attention attention(const Op& op) const {
        return Attention{shape_.heads,     (const char*)op.source, cache(op),  (float*)op.target,
                         op.target_stride, op.window,              op.soft_cap};
    }

    void attend_task(const Op& op, Cut& cut, int64_t task) {
        const std::vector<Piece>& all = cut.attend;
        const Piece& piece = all[task];
        const Queries& after = all[std::min<size_t>(task + 1, all.size() - 1)].queries;
        const Attention a = attention(op);
        const Following following{&after, begin_of(a, after, first_split(a, after))};
        if (piece.turns) rotate_head(ops_[op.left], piece.queries.token, piece.queries.head);
        if (piece.split < 0) {
            attend(a, piece.queries, following);
        } else {
            attend_partly(a, piece.queries, piece.split, cut.partials.data() + piece.partial, following);
        }
    }

    const std::vector<Op> ops_;
    const Shape shape_;
    Step step_{};
    uint64_t number_ = 0;      // of steps
    std::vector<int> phases_;  // the first operation of each
    std::vector<Cut> cuts_;
    std::vector<int64_t> counts_;          // tasks of each phase
    std::vector<int64_t> tasks_, strips_;  // of each operation; strips that one task takes
    std::vector<Private> privates_;        // of each thread
    Pool pool_;
};

}  // namespace

extern "C" {

// Null where the system gives no more threads, or no memory for them.
void* actorllm_open(const Op* ops, int num_ops, const Shape* shape, int num_threads) {
    try {
        return new Engine(ops, num_ops, *shape, num_threads);
    } catch (const std::exception&) {
        return nullptr;
    }
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

int64_t actorllm_cache_bytes(const Heads* heads) { return cache_bytes(*heads); }

int64_t actorllm_query_bytes(const Heads* heads) { return query_bytes(*heads); }
}
