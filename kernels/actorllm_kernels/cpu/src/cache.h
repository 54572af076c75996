// The cache of keys and values, in numbers of two kinds: where they stand, how they get there, and how they
// are multiplied with queries and with the weights of a softmax.
//
// A vector has 16 lanes of four bytes, with a few numbers in each. A block has for each key-value head its
// keys, tiles of 16 [padded / NUMBERS][16][NUMBERS], so that a vector has some numbers of each of 16 keys; then
// its values [block_size / NUMBERS][padded][NUMBERS], so that a vector has some keys' values of 16 numbers; and
// then, where numbers have scales, those of the keys and those of the values. All begin at cache lines.
#pragma once

#include "activations.h"

enum Cache { CACHE_BF16 = 0, CACHE_INT8 = 1 };

constexpr int MOST_HEAD = 256;
constexpr int VECTOR = 64;  // bytes

struct Heads {
    int64_t queries, keys;   // heads of q, and of k and v
    int64_t size, padded;    // numbers of a head, and that rounded up to 16
    int64_t block_size;      // tokens of a block of the cache
    int64_t cache;           // the kind of its numbers
};

// Pairs of bfloat16. A row, which is a query or the weights of a softmax, is rounded to them too.
struct BF16Cache {
    static constexpr int NUMBERS = 2;  // in a lane
    static constexpr bool SCALED = false;
    typedef uint16_t Number;
    typedef const uint32_t* Row;
    typedef F Total;

    static constexpr int64_t row_bytes(int64_t size) { return size * 2; }

    static float round(const F* values, int64_t vectors, Number* to) {
        for (int64_t i = 0; i < vectors; i++) {
            const U16 rounded = to_bf16(values[i]);
            std::memcpy(to + i * LANES, &rounded, sizeof rounded);
        }
        return 1.0f;
    }

    static void put_row(const F* values, int64_t vectors, void* to) { round(values, vectors, (Number*)to); }

    // A sum in each lane, on top of what was there before.
    INLINE Total begin(Row, F before) { return before; }
    INLINE void add(Total& total, Bytes vector, Row row, int64_t i) { total = dot_bf16(total, vector, row[i]); }
    INLINE F end(const Total& total, Row, F) { return total; }
};

// Four unsigned bytes, of which 128 means 0. Each token and key-value head has a scale for its key and one for
// its value. A row has 16 bits in two planes of signed bytes, as in activations.h, and one scale.
struct Int8Cache {
    static constexpr int NUMBERS = 4;
    static constexpr bool SCALED = true;
    static constexpr int ZERO = 128;
    typedef uint8_t Number;
    struct Planes {
        float scale;
        int32_t shift;              // -ZERO * the sum of its integers
        int32_t fours[][2][LANES];  // high and low of each 64 numbers; beyond the row zeros
    };
    typedef const Planes* Row;
    struct Total {
        I high, low;
    };

    static constexpr int64_t row_bytes(int64_t size) {
        return sizeof(Planes) + (size + 4 * LANES - 1) / (4 * LANES) * sizeof(int32_t[2][LANES]);
    }

    static float size_of(const F* values, int64_t vectors) {
        F most = F{};
        for (int64_t i = 0; i < vectors; i++) most = max(most, abs(values[i]));
        return largest(most);
    }

    static float round(const F* values, int64_t vectors, Number* to) {
        const float size = size_of(values, vectors);
        const F inverse = splat(size > 1e-30f ? 127.0f / size : 0.0f);  // what is smaller is zero
        for (int64_t i = 0; i < vectors; i++)
            narrow((int8_t*)to + i * LANES, nearest(values[i] * inverse) + splat_int(ZERO));
        return size * (1.0f / 127.0f);
    }

    static void put_row(const F* values, int64_t vectors, void* to) {
        Planes& row = *(Planes*)to;
        const float size = size_of(values, vectors);
        const F inverse = splat(size > 1e-30f ? MOST_INT16 / size : 0.0f);
        I total = I{};
        for (int64_t i = 0; i < vectors; i += 4) {
            I four[4] = {};
            for (int j = 0; j < 4 && i + j < vectors; j++) {
                four[j] = nearest(values[i + j] * inverse);
                total += four[j];
            }
            to_planes(four, row.fours[i / 4][0], row.fours[i / 4][1]);
        }
        row.scale = size * (1.0f / MOST_INT16);
        row.shift = -ZERO * sum_int(total);
    }

    // No sum overflows: 255 * 32639 for each of MOST_HEAD numbers is below 2 ** 31.
    INLINE Total begin(Row row, F) { return {I{}, splat_int(row->shift)}; }
    INLINE void add(Total& total, Bytes vector, Row row, int64_t i) {
        const auto* planes = row->fours[i / LANES];
        total.high = dot_bytes<true>(total.high, vector, planes[0][i % LANES]);
        total.low = dot_bytes<true>(total.low, vector, planes[1][i % LANES]);
    }
    INLINE F end(const Total& total, Row row, F before) {
        return fma(to_float((total.high << 8) + total.low), splat(row->scale), before);
    }
};

// Calls use(...) with the kind of cache.
template <class Use>
INLINE auto with_cache(int64_t cache, Use use) {
    return cache == CACHE_INT8 ? use(Int8Cache()) : use(BF16Cache());
}

// What a block has of one key-value head.
template <class C>
struct Part {
    static constexpr int64_t SCALE = C::SCALED ? sizeof(float) : 0;

    char* at;
    int64_t head_bytes, block_size;

    Part(char* cache, const Heads& heads, int64_t block, int64_t head)
        : at(cache + (block * heads.keys + head) * bytes(heads)),
          head_bytes(heads.padded * (int64_t)sizeof(typename C::Number)),
          block_size(heads.block_size) {}

    static int64_t bytes(const Heads& heads) {
        return 2 * heads.block_size * (heads.padded * (int64_t)sizeof(typename C::Number) + SCALE);
    }

    // Of the tile that begins at this token, or the vector that does.
    char* keys(int64_t token) const { return at + token * head_bytes; }
    char* values(int64_t token) const { return keys(block_size + token); }
    float* key_scales(int64_t token) const { return (float*)keys(2 * block_size) + token; }
    float* value_scales(int64_t token) const { return key_scales(block_size + token); }
};

INLINE int64_t cache_bytes(const Heads& heads) {
    return with_cache(heads.cache, [&](auto cache) { return heads.keys * Part<decltype(cache)>::bytes(heads); });
}

INLINE int64_t query_bytes(const Heads& heads) {
    return with_cache(heads.cache, [&](auto cache) { return cache.row_bytes(heads.padded); });
}

// The numbers of a head, times `scale`, with zeros behind. Returns how many vectors they are.
INLINE int64_t vectors_of(const float* head, const Heads& heads, float scale, F to[MOST_HEAD / LANES]) {
    const int64_t vectors = heads.padded / LANES;
    for (int64_t i = 0; i < vectors; i++) {
        const int count = (int)(heads.size - i * LANES);
        to[i] = (count > 0 ? load_some(head + i * LANES, count) : F{}) * splat(scale);
    }
    return vectors;
}

// What is not finite in bfloat16 would be: a key that nobody sees has weight 0, and 0 * NaN is NaN.
INLINE void make_finite(float* head, int64_t size) {
    for (int64_t i = 0; i < size; i++)
        if (!(std::fabs(head[i]) < 3.38e38f)) head[i] = 0;
}

template <class C>
INLINE void put_query(const float* head, const Heads& heads, float scale, char* to) {
    F numbers[MOST_HEAD / LANES];
    const int64_t vectors = vectors_of(head, heads, scale, numbers);
    C::put_row(numbers, vectors, to);
}

// The key or the value of one token, rounded; gives its scale.
template <class C>
INLINE float round_head(float* head, const Heads& heads, typename C::Number rounded[MOST_HEAD]) {
    F numbers[MOST_HEAD / LANES];
    make_finite(head, heads.size);
    const int64_t vectors = vectors_of(head, heads, 1.0f, numbers);
    return C::round(numbers, vectors, rounded);
}

template <class C>
INLINE void put_key(float* head, const Heads& heads, const Part<C>& part, int64_t token) {
    typename C::Number rounded[MOST_HEAD];
    const float scale = round_head<C>(head, heads, rounded);
    char* to = part.keys(token / LANES * LANES) + token % LANES * 4;
    for (int64_t i = 0; i < heads.padded / C::NUMBERS; i++) std::memcpy(to + i * VECTOR, rounded + i * C::NUMBERS, 4);
    if (C::SCALED) *part.key_scales(token) = scale;
}

template <class C>
INLINE void put_value(float* head, const Heads& heads, const Part<C>& part, int64_t token) {
    typename C::Number rounded[MOST_HEAD];
    const float scale = round_head<C>(head, heads, rounded);
    auto* to = (typename C::Number*)part.values(token / C::NUMBERS * C::NUMBERS) + token % C::NUMBERS;
    for (int64_t i = 0; i < heads.padded; i++) to[C::NUMBERS * i] = rounded[i];
    if (C::SCALED) *part.value_scales(token) = scale;
}
