// Products of activations and weights: out[m, o] = sum over k of x[m, k] * w[o, k].
//
// Weights stand in strips of 16 outputs, one a lane, so that nothing is summed across lanes. Every output
// is summed in one order, over blocks of 32 columns from the first to the last, however many rows there
// are: a row's result does not depend on its neighbours.
#pragma once

#include "activations.h"

// value = code * scale + offset, for codes of 4 or 8 bits, with scale and offset for 32 columns or for 16,
// stored as float16 (HALF) or float32.
enum Weights {
    W_4_32_HALF = 0,
    W_4_32 = 1,
    W_4_16 = 2,
    W_8_32_HALF = 3,
    W_8_32 = 4,
    W_8_16 = 5,
    W_BF16 = 6,
    W_F16 = 7,
    W_F32 = 8,
};

template <int BITS_, int SPAN_, bool HALF_>
struct Codes {
    static constexpr int BITS = BITS_, SPAN = SPAN_;
    static constexpr bool HALF = HALF_;
    static constexpr int SPANS = GROUP / SPAN;
    static constexpr int CODE_BYTES = GROUP * LANES * BITS / 8;
    static constexpr int64_t BYTES = CODE_BYTES + 2 * SPANS * LANES * (HALF ? 2 : 4);
};

// How many scales and offsets 32 columns of an output have.
INLINE int spans_of(int weights) { return weights == W_4_16 || weights == W_8_16 ? 2 : 1; }

// Bytes of 32 columns of a strip.
INLINE int64_t strip_block_bytes(int weights) {
    switch (weights) {
        case W_4_32_HALF: return Codes<4, 32, true>::BYTES;
        case W_4_32: return Codes<4, 32, false>::BYTES;
        case W_4_16: return Codes<4, 16, false>::BYTES;
        case W_8_32_HALF: return Codes<8, 32, true>::BYTES;
        case W_8_32: return Codes<8, 32, false>::BYTES;
        case W_8_16: return Codes<8, 16, false>::BYTES;
        case W_F32: return GROUP * LANES * 4;
        default: return GROUP * LANES * 2;
    }
}

// The eight quads of columns of a block of codes: quad j has columns 4 j ... 4 j + 3 of every lane.
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

// The scale (part 0) or offset (part 1) of a span.
template <class W>
INLINE F parameter(const uint8_t* after_codes, int part, int span) {
    const int at = (part * W::SPANS + span) * LANES;
    return W::HALF ? from_half((const uint16_t*)after_codes + at) : load((const float*)after_codes + at);
}

INLINE int32_t four_bytes(const int8_t* from) {
    int32_t four;
    std::memcpy(&four, from, 4);
    return four;
}

// M rows of a tile, from `row` on, times one strip.
template <class W, int PLANES, int M>
INLINE void strip_of_codes(const uint8_t* weights, const IntBlock<PLANES>* x, int row, int64_t blocks, F total[M]) {
    constexpr bool WIDE = W::BITS == 8;
    constexpr int QUADS = 8 / W::SPANS;
    for (int m = 0; m < M; m++) total[m] = F{};
    for (int64_t b = 0; b < blocks; b++, weights += W::BYTES) {
        Bytes quads[8];
        unpack<W::BITS>(weights, quads);
        __builtin_prefetch(weights + 16 * W::BYTES);
        for (int span = 0; span < W::SPANS; span++) {
            const F scale = parameter<W>(weights + W::CODE_BYTES, 0, span);
            const F offset = parameter<W>(weights + W::CODE_BYTES, 1, span);
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) {
                I products[PLANES] = {};
                for (int plane = 0; plane < PLANES; plane++)
#pragma GCC unroll 8
                    for (int j = 0; j < QUADS; j++) {
                        const int quad = span * QUADS + j;
                        const int32_t four = four_bytes(x[b].planes[plane][row + m] + 4 * quad);
                        products[plane] = dot_bytes<WIDE>(products[plane], quads[quad], four);
                    }
                const I whole = PLANES == 1 ? products[0] : (products[0] << 8) + products[PLANES - 1];
                total[m] = fma(scale, to_float(whole) * splat(x[b].scale[row + m]), total[m]);
                total[m] = fma(offset, splat(x[b].sums[span][row + m]), total[m]);
            }
        }
    }
}

// Pairs of bfloat16: column pair j of a block is 16 lanes of two.
template <int M>
INLINE void strip_of_bf16(const uint8_t* weights, const BF16Block* x, int row, int64_t blocks, F total[M]) {
    for (int m = 0; m < M; m++) total[m] = F{};
    for (int64_t b = 0; b < blocks; b++, weights += GROUP * LANES * 2) {
#pragma GCC unroll 4
        for (int j = 0; j < GROUP / 2; j++) {
            const Bytes pairs = load_bytes(weights + 64 * j);
            for (int m = 0; m < M; m++) {
                uint32_t pair;
                std::memcpy(&pair, x[b].values[row + m] + 2 * j, 4);
                total[m] = dot_bf16(total[m], pairs, pair);
            }
        }
    }
}

template <bool HALF, int M>
INLINE void strip_of_floats(const uint8_t* weights, const F32Block* x, int row, int64_t blocks, F total[M]) {
    for (int m = 0; m < M; m++) total[m] = F{};
    for (int64_t b = 0; b < blocks; b++, weights += GROUP * LANES * (HALF ? 2 : 4)) {
#pragma GCC unroll 4
        for (int j = 0; j < GROUP; j++) {
            const F column =
                HALF ? from_half((const uint16_t*)weights + LANES * j) : load((const float*)weights + LANES * j);
            for (int m = 0; m < M; m++) total[m] = fma(column, splat(x[b].values[row + m][j]), total[m]);
        }
    }
}

// What a product does with its sums.
struct Output {
    float* to;        // [rows, stride]
    int64_t stride;
    int64_t outputs;  // of a row
    const float* bias;  // [outputs rounded up to 16], or null
    bool adds;
};

struct Product {
    int weights, activation;
    const uint8_t* packed;
    const void* x;
    int64_t blocks;  // of 32 columns
    Output out;
};

template <int M>
INLINE void finish(const Output& out, int64_t row, int64_t strip, const F total[M]) {
    const int64_t first = strip * LANES;
    const int count = (int)(out.outputs - first);
    for (int m = 0; m < M; m++) {
        float* to = out.to + (row + m) * out.stride + first;
        F value = total[m];
        if (out.bias) value = value + load(out.bias + first);
        if (out.adds) value = value + load_some(to, count);
        store_some(to, value, count);
    }
}

template <class W, int PLANES>
struct RowsOfCodes {
    template <int M>
    static void rows(const Product& p, int64_t row, int64_t strip) {
        F total[M];
        const auto* x = (const IntBlock<PLANES>*)p.x + row / TILE * p.blocks;
        strip_of_codes<W, PLANES, M>(p.packed + strip * p.blocks * W::BYTES, x, row % TILE, p.blocks, total);
        finish<M>(p.out, row, strip, total);
    }
};

struct RowsOfBF16 {
    template <int M>
    static void rows(const Product& p, int64_t row, int64_t strip) {
        F total[M];
        const auto* x = (const BF16Block*)p.x + row / TILE * p.blocks;
        strip_of_bf16<M>(p.packed + strip * p.blocks * GROUP * LANES * 2, x, row % TILE, p.blocks, total);
        finish<M>(p.out, row, strip, total);
    }
};

template <bool HALF>
struct RowsOfFloats {
    template <int M>
    static void rows(const Product& p, int64_t row, int64_t strip) {
        F total[M];
        const auto* x = (const F32Block*)p.x + row / TILE * p.blocks;
        const int64_t bytes = GROUP * LANES * (HALF ? 2 : 4);
        strip_of_floats<HALF, M>(p.packed + strip * p.blocks * bytes, x, row % TILE, p.blocks, total);
        finish<M>(p.out, row, strip, total);
    }
};

typedef void (*Rows)(const Product&, int64_t row, int64_t strip);

// One pass over a strip serves 1, 2, 4 or 8 rows: as many as the registers of the CPU are for.
#if SIMD_AVX512
constexpr int KINDS = 4;
#elif SIMD_AVX2
constexpr int KINDS = 3;
#else
constexpr int KINDS = 1;
#endif

template <class Kernel>
static Rows by_rows(int kind) {
    if constexpr (KINDS > 3)
        if (kind == 3) return Kernel::template rows<8>;
    if constexpr (KINDS > 2)
        if (kind == 2) return Kernel::template rows<4>;
    if constexpr (KINDS > 1)
        if (kind == 1) return Kernel::template rows<2>;
    return Kernel::template rows<1>;
}

template <class W>
static Rows rows_of_codes(int activation, int kind) {
    return activation == ACT_INT8 ? by_rows<RowsOfCodes<W, 1>>(kind) : by_rows<RowsOfCodes<W, 2>>(kind);
}

static Rows rows_function(int weights, int activation, int kind) {
    switch (weights) {
        case W_4_32_HALF: return rows_of_codes<Codes<4, 32, true>>(activation, kind);
        case W_4_32: return rows_of_codes<Codes<4, 32, false>>(activation, kind);
        case W_4_16: return rows_of_codes<Codes<4, 16, false>>(activation, kind);
        case W_8_32_HALF: return rows_of_codes<Codes<8, 32, true>>(activation, kind);
        case W_8_32: return rows_of_codes<Codes<8, 32, false>>(activation, kind);
        case W_8_16: return rows_of_codes<Codes<8, 16, false>>(activation, kind);
        case W_BF16: return by_rows<RowsOfBF16>(kind);
        case W_F16: return by_rows<RowsOfFloats<true>>(kind);
        default: return by_rows<RowsOfFloats<false>>(kind);
    }
}

// Rows [begin, end) times strips [first, last). A strip stays in the nearest cache while the rows pass.
static void multiply(const Product& p, int64_t begin, int64_t end, int64_t first, int64_t last) {
    for (int64_t strip = first; strip < last; strip++)
        for (int64_t row = begin; row < end;) {
            int kind = KINDS - 1;
            while ((1 << kind) > end - row) kind--;
            rows_function(p.weights, p.activation, kind)(p, row, strip);
            row += 1 << kind;
        }
}
