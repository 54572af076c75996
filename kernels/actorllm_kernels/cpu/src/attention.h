// Causal softmax attention over the paged cache, for rows of any length at once.
//
// Keys are taken 64 at a time with a running maximum (Milakov and Gimelshein, arXiv 1805.02867), and 512 at
// a time from a fresh start, whose results are joined in order (as in flash decoding). Both kinds of piece
// begin at multiples of their size from the request's first token, and a piece that a query does not see
// changes nothing, so that a query's result depends on neither its neighbours nor the number of threads.
#pragma once

#include <algorithm>
#include <limits>

#include "elementwise.h"

constexpr int CHUNK = 64;             // keys under one maximum
constexpr int TILES = CHUNK / LANES;  // of 16 keys
constexpr int SPLIT = 512;            // keys from one start
constexpr int MOST_QUERIES = 12;      // rows (tokens times heads) of one task, that share keys

struct Attention {
    Heads heads;
    const char* queries;  // [N, heads], rows of the kind that the cache's numbers want
    char* cache;          // of this layer
    float* out;           // [N, stride]
    int64_t stride;
    int64_t window;  // tokens that a token sees; 0: all
    float soft_cap;
};

// `count` tokens of one request, from number `token` of the step on, at `position` in the request, and the
// heads [first, first + heads) of the group that shares key-value head `head`.
struct Queries {
    const int32_t* blocks;  // the request's blocks
    int64_t num_blocks;
    int64_t token, position;
    int count, head, first, heads;

    int rows() const { return count * heads; }
    int64_t last() const { return position + count - 1; }
};

// Running softmax of the rows. A sum is kept by lanes, and added up at the end.
struct State {
    float most[MOST_QUERIES];
    F sum[MOST_QUERIES];
    float values[MOST_QUERIES][MOST_HEAD];

    void clear(int rows, int64_t padded) {
        for (int r = 0; r < rows; r++) {
            most[r] = -std::numeric_limits<float>::infinity();
            sum[r] = F{};
            std::memset(values[r], 0, padded * sizeof(float));
        }
    }
};

template <class C>
INLINE typename C::Row query(const Attention& a, const Queries& q, int row) {
    const int64_t group = a.heads.queries / a.heads.keys;
    const int64_t head = q.head * group + q.first + row % q.heads;
    const int64_t token = q.token + row / q.heads;
    return (typename C::Row)(a.queries + (token * a.heads.queries + head) * C::row_bytes(a.heads.padded));
}

// The block that has this key; any at all where the request has none (nobody sees such keys).
INLINE int64_t block_of(const Attention& a, const Queries& q, int64_t key) {
    const int64_t number = key / a.heads.block_size;
    const int64_t block = number < q.num_blocks ? q.blocks[number] : 0;
    return block < 0 ? 0 : block;
}

// Where a chunk stands: tiles of 16 keys, vectors of values, and the scales of both by tiles.
struct Places {
    const char *keys[TILES], *values[CHUNK / 2];
    const float *key_scales[TILES], *value_scales[TILES];
};

template <class C>
static void find(const Attention& a, const Queries& q, int64_t key, Places& places) {
    constexpr int VECTORS = LANES / C::NUMBERS;
    for (int t = 0; t < TILES; t++) {
        const int64_t at = key + t * LANES, token = at % a.heads.block_size;
        const Part<C> part(a.cache, a.heads, block_of(a, q, at), q.head);
        places.keys[t] = part.keys(token);
        for (int i = 0; i < VECTORS; i++) places.values[t * VECTORS + i] = part.values(token + i * C::NUMBERS);
        places.key_scales[t] = part.key_scales(token);
        places.value_scales[t] = part.value_scales(token);
    }
}

// Scores of ROWS rows with 64 keys, AT_ONCE tiles of 16 keys at once. The next chunk's keys are on their way
// meanwhile.
template <class C, int ROWS>
INLINE void scores_of(const Attention& a, const Queries& q, int row, const Places& here, const Places& next,
                      float scores[][CHUNK]) {
    constexpr int AT_ONCE = ROWS <= 3 ? 4 : ROWS <= 6 ? 2 : 1;
    typename C::Row queries[ROWS];
    for (int r = 0; r < ROWS; r++) queries[r] = query<C>(a, q, row + r);
    for (int tile = 0; tile < TILES; tile += AT_ONCE) {
        typename C::Total totals[ROWS][AT_ONCE];
        for (int r = 0; r < ROWS; r++)
            for (int t = 0; t < AT_ONCE; t++) totals[r][t] = C::begin(queries[r], F{});
        for (int64_t begin = 0; begin < a.heads.padded / C::NUMBERS; begin += LANES / C::NUMBERS)
#pragma GCC unroll 8
            for (int64_t i = begin; i < begin + LANES / C::NUMBERS; i++)
                for (int t = 0; t < AT_ONCE; t++) {
                    const Bytes vector = load_bytes(here.keys[tile + t] + i * VECTOR);
                    __builtin_prefetch(next.keys[tile + t] + i * VECTOR);
                    for (int r = 0; r < ROWS; r++) C::add(totals[r][t], vector, queries[r], i);
                }
        for (int r = 0; r < ROWS; r++)
            for (int t = 0; t < AT_ONCE; t++) {
                F score = C::end(totals[r][t], queries[r], F{});
                if (C::SCALED) score = score * load(here.key_scales[tile + t]);
                store(scores[row + r] + (tile + t) * LANES, score);
            }
    }
}

// The weights of a chunk, of each row.
template <class C>
using Weighed = char[C::row_bytes(CHUNK)];

// values[row] = values[row] * alpha + the sum of weight * value over the 64 keys, SLICES * 16 numbers at once.
template <class C, int ROWS, int SLICES>
INLINE void slices_of(const Weighed<C>* weights, const Places& here, const Places& next, int64_t slice,
                      const float* alpha, float (*values)[MOST_HEAD]) {
    const auto row = [=](int r) { return (typename C::Row)weights[r]; };
    const auto before = [=](int r, int s) { return load(values[r] + (slice + s) * LANES) * splat(alpha[r]); };
    typename C::Total totals[ROWS][SLICES];
    for (int r = 0; r < ROWS; r++)
        for (int s = 0; s < SLICES; s++) totals[r][s] = C::begin(row(r), before(r, s));
    for (int i = 0; i < CHUNK / C::NUMBERS; i++)
        for (int s = 0; s < SLICES; s++) {
            const Bytes vector = load_bytes(here.values[i] + (slice + s) * VECTOR);
            __builtin_prefetch(next.values[i] + (slice + s) * VECTOR);
            for (int r = 0; r < ROWS; r++) C::add(totals[r][s], vector, row(r), i);
        }
    for (int r = 0; r < ROWS; r++)
        for (int s = 0; s < SLICES; s++)
            store(values[r] + (slice + s) * LANES, C::end(totals[r][s], row(r), before(r, s)));
}

template <class C, int ROWS>
INLINE void values_of_rows(const Weighed<C>* weights, const Places& here, const Places& next, int64_t padded,
                           const float* alpha, float (*values)[MOST_HEAD]) {
    constexpr int SLICES = ROWS <= 3 ? 4 : ROWS <= 6 ? 2 : 1;
    int64_t slice = 0;
    for (; slice + SLICES <= padded / LANES; slice += SLICES)
        slices_of<C, ROWS, SLICES>(weights, here, next, slice, alpha, values);
    for (; slice < padded / LANES; slice++) slices_of<C, ROWS, 1>(weights, here, next, slice, alpha, values);
}

// Calls one(ROWS, row) for all rows: 12, 6, 3 or 1 at once, as many as the CPU has registers for.
template <class One>
INLINE void by_pieces(int rows, One one) {
    int row = 0;
#if SIMD_AVX512
    for (; row + 12 <= rows; row += 12) one(std::integral_constant<int, 12>(), row);
    for (; row + 6 <= rows; row += 6) one(std::integral_constant<int, 6>(), row);
    for (; row + 3 <= rows; row += 3) one(std::integral_constant<int, 3>(), row);
#endif
    for (; row < rows; row++) one(std::integral_constant<int, 1>(), row);
}

// The softmax weights of one row's 64 scores, each times its value's scale; the row's maximum and sum, which
// are without that scale, move on. Returns what the values so far are to be multiplied with.
template <class C>
INLINE float weigh(const Attention& a, int64_t position, int64_t first_key, const float scores[CHUNK],
                   const Places& here, State& state, int row, F weights[TILES]) {
    const int32_t seen = (int32_t)std::min<int64_t>(position - first_key, CHUNK);  // the last key that is seen
    // The last that is too old.
    const int32_t hidden = a.window ? (int32_t)std::max<int64_t>(position - a.window - first_key, -1) : -1;
    F part[TILES];
    F most = splat(-std::numeric_limits<float>::infinity());
    for (int t = 0; t < TILES; t++) {
        part[t] = load(scores + t * LANES);
        if (a.soft_cap > 0) part[t] = splat(a.soft_cap) * tanh(part[t] * splat(1.0f / a.soft_cap));
        if (seen < (t + 1) * LANES - 1 || hidden >= t * LANES) {
            const I key = splat_int(t * LANES) + I{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
            const I outside = (key > splat_int(seen)) | (key <= splat_int(hidden));
            const F least = splat(-std::numeric_limits<float>::infinity());
            part[t] = (F)(((I)part[t] & ~outside) | ((I)least & outside));
        }
        most = max(most, part[t]);
    }
    const float before = state.most[row], now = std::max(before, largest(most));
    if (now == -std::numeric_limits<float>::infinity()) {
        std::fill(weights, weights + TILES, F{});
        return 1.0f;
    }
    F total = F{};
    for (int t = 0; t < TILES; t++) {
        const I is_seen = part[t] > splat(-std::numeric_limits<float>::infinity());
        weights[t] = (F)((I)exp(part[t] - splat(now)) & is_seen);
        total = total + weights[t];
        if (C::SCALED) weights[t] = weights[t] * load(here.value_scales[t]);
    }
    const float alpha = before == now ? 1.0f : exp(splat(before - now))[0];
    state.most[row] = now;
    state.sum[row] = state.sum[row] * splat(alpha) + total;
    return alpha;
}

template <class C>
static void attend_chunk(const Attention& a, const Queries& q, int64_t key, const Places& here, const Places& next,
                         State& state) {
    float scores[MOST_QUERIES][CHUNK], alpha[MOST_QUERIES];
    F floats[MOST_QUERIES][TILES];
    alignas(VECTOR) Weighed<C> weights[MOST_QUERIES];
    for (int t = 0; C::SCALED && t < TILES; t++) {
        __builtin_prefetch(next.key_scales[t]);
        __builtin_prefetch(next.value_scales[t]);
    }
    by_pieces(q.rows(), [&](auto rows, int row) { scores_of<C, rows.value>(a, q, row, here, next, scores); });
    for (int row = 0; row < q.rows(); row++)
        alpha[row] = weigh<C>(a, q.position + row / q.heads, key, scores[row], here, state, row, floats[row]);
    // In a loop of its own: so the CPU works at several rows at once.
    for (int row = 0; row < q.rows(); row++) C::put_row(floats[row], TILES, weights[row]);
    by_pieces(q.rows(), [&](auto rows, int row) {
        values_of_rows<C, rows.value>(weights + row, here, next, a.heads.padded, alpha + row, state.values + row);
    });
}

// What this thread will likely attend to next, from which key on.
struct Following {
    const Queries* queries;
    int64_t key;
};

template <class C>
static void attend_chunks(const Attention& a, const Queries& q, int64_t begin, int64_t end, State& state,
                          const Following& following) {
    Places places[2];
    find<C>(a, q, begin, places[0]);
    for (int64_t key = begin, i = 0; key < end; key += CHUNK, i = 1 - i) {
        if (key + CHUNK <= q.last()) {
            find<C>(a, q, key + CHUNK, places[1 - i]);
        } else {
            find<C>(a, *following.queries, following.key, places[1 - i]);
        }
        attend_chunk<C>(a, q, key, places[i], places[1 - i], state);
    }
}

// The first key that any of the queries sees.
INLINE int64_t first_key(const Attention& a, const Queries& q) {
    return a.window ? std::max<int64_t>(0, q.position - a.window + 1) : 0;
}

// The first key of a split.
INLINE int64_t begin_of(const Attention& a, const Queries& q, int64_t split) {
    return std::max<int64_t>(split * SPLIT, first_key(a, q) / CHUNK * CHUNK);
}

static void attend_split(const Attention& a, const Queries& q, int64_t split, State& state,
                         const Following& following) {
    state.clear(q.rows(), a.heads.padded);
    const int64_t end = std::min<int64_t>((split + 1) * SPLIT, q.last() + 1);
    with_cache(a.heads.cache, [&](auto cache) {
        attend_chunks<decltype(cache)>(a, q, begin_of(a, q, split), end, state, following);
    });
}

// `more` joins the total.
INLINE void join(float& most, F& sum, float* values, float more_most, F more_sum, const float* more, int64_t padded) {
    const float now = std::max(most, more_most);
    if (now == -std::numeric_limits<float>::infinity()) return;
    const float ours = exp(splat(most - now))[0] * (most > -std::numeric_limits<float>::infinity());
    const float theirs = exp(splat(more_most - now))[0] * (more_most > -std::numeric_limits<float>::infinity());
    most = now;
    sum = sum * splat(ours) + more_sum * splat(theirs);
    for (int64_t i = 0; i < padded; i += LANES)
        store(values + i, load(values + i) * splat(ours) + load(more + i) * splat(theirs));
}

INLINE void finish(const Attention& a, const Queries& q, int row, F total, const float* values) {
    const int64_t group = a.heads.queries / a.heads.keys;
    const int64_t head = q.head * group + q.first + row % q.heads;
    float* to = a.out + (q.token + row / q.heads) * a.stride + head * a.heads.size;
    const F inverse = splat(1.0f / sum(total));
    for (int64_t i = 0; i < a.heads.size; i += LANES)
        store_some(to + i, load(values + i) * inverse, (int)(a.heads.size - i));
}

INLINE int64_t first_split(const Attention& a, const Queries& q) { return first_key(a, q) / SPLIT; }
INLINE int64_t end_split(const Queries& q) { return q.last() / SPLIT + 1; }

// All splits, one after the other.
static void attend(const Attention& a, const Queries& q, const Following& following) {
    State total, part;
    int64_t split = first_split(a, q);
    attend_split(a, q, split, total, following);
    while (++split < end_split(q)) {
        attend_split(a, q, split, part, following);
        for (int r = 0; r < q.rows(); r++)
            join(total.most[r], total.sum[r], total.values[r], part.most[r], part.sum[r], part.values[r],
                 a.heads.padded);
    }
    for (int r = 0; r < q.rows(); r++) finish(a, q, r, total.sum[r], total.values[r]);
}

// One split of many, kept as rows of values, sum (by lanes) and maximum.
INLINE int64_t partial_size(const Heads& heads) { return heads.padded + 2 * LANES; }

static void attend_partly(const Attention& a, const Queries& q, int64_t split, float* partial,
                          const Following& following) {
    State state;
    attend_split(a, q, split, state, following);
    for (int r = 0; r < q.rows(); r++, partial += partial_size(a.heads)) {
        std::memcpy(partial, state.values[r], a.heads.padded * sizeof(float));
        store(partial + a.heads.padded, state.sum[r]);
        partial[a.heads.padded + LANES] = state.most[r];
    }
}

// Joins the splits of one task, in their order, exactly as `attend` does.
static void join_parts(const Attention& a, const Queries& q, int64_t num_splits, const float* partials) {
    const int64_t size = partial_size(a.heads), padded = a.heads.padded;
    for (int r = 0; r < q.rows(); r++) {
        float values[MOST_HEAD];
        const float* first = partials + r * size;
        std::memcpy(values, first, padded * sizeof(float));
        F total = load(first + padded);
        float most = first[padded + LANES];
        for (int64_t s = 1; s < num_splits; s++) {
            const float* part = partials + (s * q.rows() + r) * size;
            join(most, total, values, part[padded + LANES], load(part + padded), part, padded);
        }
        finish(a, q, r, total, values);
    }
}
