// Products of activations and weights: out[m, o] = sum over k of x[m, k] * w[o, k].
//
// Weights stand in strips of 32 outputs, in two halves of 16, one a lane, so that nothing is summed across
// lanes. Every output is summed in one order, over blocks of 32 columns from the first to the last, however
// many rows there are: a row's result does not depend on its neighbours.
#pragma once

#include <algorithm>
#include <limits>

#include "activations.h"

constexpr int STRIP = 2 * LANES;

// value = code * scale + offset, for codes of 4 or 8 bits, with scale and offset for 32 columns or for 16,
// stored as float16 (HALF) or float32. CENTRED: value = (code - zero) * scale, where zero is 8 or 128.
enum Weights {
    W_4_32_HALF = 0,
    W_4_32 = 1,
    W_4_16 = 2,
    W_8_32_HALF = 3,
    W_8_32 = 4,
    W_8_16 = 5,
    W_CENTRED_4_32_HALF = 6,
    W_CENTRED_8_32_HALF = 7,
    W_CENTRED_8_16 = 8,
    W_BF16 = 9,
    W_F16 = 10,
    W_F32 = 11,
};

// A block of a strip: the codes of its first half and of its second, then for each span the 32 scales, then
// in the same way the offsets.
template <int BITS_, int SPAN_, bool HALF_, bool CENTRED_>
struct Codes {
    static constexpr int BITS = BITS_, SPAN = SPAN_;
    static constexpr bool HALF = HALF_, CENTRED = CENTRED_;
    static constexpr int SPANS = GROUP / SPAN;
    static constexpr int CODE_BYTES = GROUP * LANES * BITS / 8;  // of a half
    static constexpr int64_t BYTES = 2 * CODE_BYTES + (CENTRED ? 1 : 2) * SPANS * STRIP * (HALF ? 2 : 4);
};

// Calls use(Codes<...>()) for the kind of codes that these weights have.
template <class Use>
INLINE auto with_codes(int weights, Use use) {
    switch (weights) {
        case W_4_32_HALF: return use(Codes<4, 32, true, false>());
        case W_4_32: return use(Codes<4, 32, false, false>());
        case W_4_16: return use(Codes<4, 16, false, false>());
        case W_8_32_HALF: return use(Codes<8, 32, true, false>());
        case W_8_32: return use(Codes<8, 32, false, false>());
        case W_8_16: return use(Codes<8, 16, false, false>());
        case W_CENTRED_4_32_HALF: return use(Codes<4, 32, true, true>());
        case W_CENTRED_8_32_HALF: return use(Codes<8, 32, true, true>());
        default: return use(Codes<8, 16, false, true>());
    }
}

INLINE Wants wants_of(int weights) {
    if (weights >= W_BF16) return {1, 0};
    return with_codes(weights, [](auto codes) {
        return Wants{codes.SPANS, codes.CENTRED ? 1 << (codes.BITS - 1) : 0};
    });
}

// Bytes of 32 columns of a strip.
INLINE int64_t strip_block_bytes(int weights) {
    if (weights >= W_BF16) return GROUP * STRIP * (weights == W_F32 ? 4 : 2);
    return with_codes(weights, [](auto codes) { return codes.BYTES; });
}

// The eight quads of columns of a half's codes: quad j has columns 4 j ... 4 j + 3 of every lane.
template <int BITS>
INLINE void unpack(const uint8_t* codes, Bytes quads[8]) {
    if (BITS == 4) {
        for (int j = 0; j < 4; j++) {
            const Bytes both = load_bytes(codes + 64 * j);
            quads[j] = both & 15;
            quads[j + 4] = (Bytes)(((I)both >> 4) & splat_int(0x0f0f0f0f));
        }
    } else {
        for (int j = 0; j < 8; j++) quads[j] = load_bytes(codes + 64 * j);
    }
}

// The scales (part 0) or offsets (part 1) of a span and a half.
template <class W>
INLINE F parameter(const uint8_t* block, int part, int span, int half) {
    const int at = (part * W::SPANS + span) * STRIP + half * LANES;
    const uint8_t* from = block + 2 * W::CODE_BYTES;
    return W::HALF ? from_half((const uint16_t*)from + at) : load((const float*)from + at);
}

INLINE int32_t four_bytes(const int8_t* from) {
    int32_t four;
    std::memcpy(&four, from, 4);
    return four;
}

constexpr int AHEAD = 4096;  // bytes of weights that are on their way

INLINE void fetch(const uint8_t* block, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(block + AHEAD + at);
}

// A block of weights times M rows of a tile, from `row` on.
template <class W, int PLANES, int M>
INLINE void add_block(const uint8_t* block, const IntBlock<PLANES>& x, int row, F total[M][2]) {
    constexpr bool WIDE = W::BITS == 8;
    constexpr int QUADS = 8 / W::SPANS, LOW = PLANES - 1;
    Bytes quads[2][8];
    for (int half = 0; half < 2; half++) unpack<W::BITS>(block + half * W::CODE_BYTES, quads[half]);
    for (int span = 0; span < W::SPANS; span++) {
        F scale[2], offset[2];
        for (int half = 0; half < 2; half++) {
            scale[half] = parameter<W>(block, 0, span, half);
            if (!W::CENTRED) offset[half] = parameter<W>(block, 1, span, half);
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            I products[2][PLANES] = {};
            if (W::CENTRED) products[0][LOW] = products[1][LOW] = splat_int(x.shifts[span][row + m]);
#pragma GCC unroll 2
            for (int plane = 0; plane < PLANES; plane++)
#pragma GCC unroll 8
                for (int j = 0; j < QUADS; j++) {
                    const int quad = span * QUADS + j;
                    const int32_t four = four_bytes(x.planes[plane][row + m] + 4 * quad);
                    for (int half = 0; half < 2; half++)
                        products[half][plane] = dot_bytes<WIDE>(products[half][plane], quads[half][quad], four);
                }
            for (int half = 0; half < 2; half++) {
                const I* by_plane = products[half];
                const I whole = PLANES == 1 ? by_plane[0] : (by_plane[0] << 8) + by_plane[LOW];
                total[m][half] = fma(scale[half], to_float(whole) * splat(x.scale[row + m]), total[m][half]);
                if (!W::CENTRED) total[m][half] = fma(offset[half], splat(x.sums[span][row + m]), total[m][half]);
            }
        }
    }
}

// Pairs of bfloat16: column pair j of a half is 16 lanes of two.
template <int M>
INLINE void add_block(const uint8_t* block, const BF16Block& x, int row, F total[M][2]) {
#pragma GCC unroll 4
    for (int j = 0; j < GROUP / 2; j++)
        for (int half = 0; half < 2; half++) {
            const Bytes pairs = load_bytes(block + half * GROUP * LANES * 2 + 64 * j);
            for (int m = 0; m < M; m++) {
                uint32_t pair;
                std::memcpy(&pair, x.values[row + m] + 2 * j, 4);
                total[m][half] = dot_bf16(total[m][half], pairs, pair);
            }
        }
}

template <bool HALF, int M>
INLINE void add_block(const uint8_t* block, const F32Block& x, int row, F total[M][2]) {
#pragma GCC unroll 4
    for (int j = 0; j < GROUP; j++)
        for (int half = 0; half < 2; half++) {
            const int at = (half * GROUP + j) * LANES;
            const F column = HALF ? from_half((const uint16_t*)block + at) : load((const float*)block + at);
            for (int m = 0; m < M; m++) total[m][half] = fma(column, splat(x.values[row + m][j]), total[m][half]);
        }
}

typedef float Sums[STRIP];

// The sums of one strip for the rows row ... of a tile.
typedef void (*SumRows)(const uint8_t* strip, const void* tile, int row, int64_t blocks, Sums* sums);

template <int M, class Add>
INLINE void sum_rows(const uint8_t* strip, int64_t bytes, int64_t blocks, Sums* sums, Add add) {
    F total[M][2] = {};
    for (int64_t b = 0; b < blocks; b++, strip += bytes) {
        fetch(strip, bytes);
        add(strip, b, total);
    }
    for (int m = 0; m < M; m++)
        for (int half = 0; half < 2; half++) store(sums[m] + half * LANES, total[m][half]);
}

template <class W, int PLANES>
struct OfCodes {
    template <int M>
    static void rows(const uint8_t* strip, const void* tile, int row, int64_t blocks, Sums* sums) {
        sum_rows<M>(strip, W::BYTES, blocks, sums, [=](const uint8_t* block, int64_t b, F(*total)[2]) {
            add_block<W, PLANES, M>(block, ((const IntBlock<PLANES>*)tile)[b], row, total);
        });
    }
};

struct OfBF16 {
    template <int M>
    static void rows(const uint8_t* strip, const void* tile, int row, int64_t blocks, Sums* sums) {
        sum_rows<M>(strip, GROUP * STRIP * 2, blocks, sums, [=](const uint8_t* block, int64_t b, F(*total)[2]) {
            add_block<M>(block, ((const BF16Block*)tile)[b], row, total);
        });
    }
};

template <bool HALF>
struct OfFloats {
    template <int M>
    static void rows(const uint8_t* strip, const void* tile, int row, int64_t blocks, Sums* sums) {
        const int64_t bytes = GROUP * STRIP * (HALF ? 2 : 4);
        sum_rows<M>(strip, bytes, blocks, sums, [=](const uint8_t* block, int64_t b, F(*total)[2]) {
            add_block<HALF, M>(block, ((const F32Block*)tile)[b], row, total);
        });
    }
};

// One pass over a strip serves 1, 2, 4 or 8 rows: as many as the registers of the CPU are for.
#if SIMD_AVX512
constexpr int KINDS = 4;
#elif SIMD_AVX2
constexpr int KINDS = 2;
#else
constexpr int KINDS = 1;
#endif
constexpr int MOST_ROWS = 1 << (KINDS - 1);

template <class Kernel>
static SumRows by_rows(int kind) {
    if constexpr (KINDS > 3)
        if (kind == 3) return Kernel::template rows<8>;
    if constexpr (KINDS > 2)
        if (kind == 2) return Kernel::template rows<4>;
    if constexpr (KINDS > 1)
        if (kind == 1) return Kernel::template rows<2>;
    return Kernel::template rows<1>;
}

static SumRows rows_function(int weights, int activation, int kind) {
    switch (weights) {
        case W_BF16: return by_rows<OfBF16>(kind);
        case W_F16: return by_rows<OfFloats<true>>(kind);
        case W_F32: return by_rows<OfFloats<false>>(kind);
    }
    return with_codes(weights, [=](auto codes) {
        using W = decltype(codes);
        return activation == ACT_INT8 ? by_rows<OfCodes<W, 1>>(kind) : by_rows<OfCodes<W, 2>>(kind);
    });
}

// A matrix, and the form of what it is multiplied with.
struct Matrix {
    const uint8_t* packed;
    int weights, activation;
    int64_t blocks;  // of 32 columns

    const uint8_t* strip(int64_t number) const { return packed + number * blocks * strip_block_bytes(weights); }
};

// Calls each(row, count) for rows [begin, end), as many at once as there is a kernel for.
template <class Each>
INLINE void by_count(int64_t begin, int64_t end, Each each) {
    for (int64_t row = begin; row < end;) {
        int kind = KINDS - 1;
        while ((1 << kind) > end - row) kind--;
        each(row, kind);
        row += 1 << kind;
    }
}

INLINE void sum_strip(const Matrix& matrix, const void* left, int64_t row, int kind, int64_t strip, Sums* sums) {
    const char* tile = (const char*)left + row / TILE * matrix.blocks * block_size(matrix.activation);
    rows_function(matrix.weights, matrix.activation, kind)(matrix.strip(strip), tile, row % TILE, matrix.blocks, sums);
}

// What a product does with its sums.
struct Output {
    float* to;          // [rows, stride]
    int64_t stride;
    int64_t outputs;    // of a row
    const float* bias;  // [outputs rounded up to 32], or null
    bool adds;
};

// Rows [begin, end) times strips [first, last); the sums of a strip stand one row below the other. A strip
// stays in the nearest cache while the rows pass.
struct Area {
    int64_t begin, end, first, last;

    int64_t rows() const { return end - begin; }
    int64_t size() const { return rows() * (last - first); }
};

static void multiply(const Matrix& matrix, const void* left, const Area& area, Sums* sums) {
    for (int64_t strip = area.first; strip < area.last; strip++, sums += area.rows())
        by_count(area.begin, area.end, [&](int64_t row, int kind) {
            sum_strip(matrix, left, row, kind, strip, sums + row - area.begin);
        });
}

INLINE void finish_row(const Output& out, int64_t row, int64_t strip, const Sums& sums) {
    for (int half = 0; half < 2; half++) {
        const int64_t first = strip * STRIP + half * LANES;
        const int count = (int)(out.outputs - first);
        if (count <= 0) return;
        float* to = out.to + row * out.stride + first;
        F value = load(sums + half * LANES);
        if (out.bias) value = value + load(out.bias + first);
        if (out.adds) value = value + load_some(to, count);
        store_some(to, value, count);
    }
}

static void finish(const Output& out, const Area& area, const Sums* sums) {
    for (int64_t strip = area.first; strip < area.last; strip++)
        for (int64_t row = area.begin; row < area.end; row++) finish_row(out, row, strip, *sums++);
}

// A number and where it is: the larger rank has the larger number, or is the first of equal ones. NaN is larger
// than all.
INLINE uint64_t rank_of(float number, int64_t place) {
    const float plain = number + 0.0f;  // there is one zero only
    uint32_t bits;
    std::memcpy(&bits, &plain, 4);
    if (plain != plain) bits = 0x7fffffff;
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~(uint32_t)place;
}

// The largest rank of a row's outputs. `sums` are those of its first strip.
static uint64_t largest_rank(const Output& out, const Area& area, const Sums* sums) {
    const F least = splat(-std::numeric_limits<float>::infinity());
    I spoilt = I{};
    uint64_t rank = 0;
    for (int half = 0; half < 2; half++) {
        F most = least;
        I where = splat_int((int32_t)area.first);
        for (int64_t strip = area.first; strip < area.last; strip++) {
            F value = load(sums[(strip - area.first) * area.rows()] + half * LANES);
            const int64_t count = out.outputs - strip * STRIP - half * LANES;
            for (int64_t lane = std::max<int64_t>(0, count); lane < LANES; lane++) value[lane] = least[0];
            const I larger = value > most;
            spoilt |= value != value;
            most = (F)(((I)value & larger) | ((I)most & ~larger));
            where = (splat_int((int32_t)strip) & larger) | (where & ~larger);
        }
        for (int lane = 0; lane < LANES; lane++)
            rank = std::max(rank, rank_of(most[lane], (int64_t)where[lane] * STRIP + half * LANES + lane));
    }
    return sum_int(spoilt) ? rank_of(std::numeric_limits<float>::quiet_NaN(), 0) : rank;
}
