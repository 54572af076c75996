// The left side of a product: rows of float32, made ready for the form that the weights have.
//
// Rows stand in tiles of 16, and in a tile 32 columns of one row follow those of the row before, so that a
// kernel reaches all rows of a tile by constant offsets. Columns beyond the width are zero.
#pragma once

#include "simd.h"

constexpr int TILE = 16;   // rows of a tile
constexpr int GROUP = 32;  // columns of a block

// What the numbers become. INT8 and INT16 have one scale for the 32 columns of a row; the 16 bits stand in
// two planes of bytes, high and low, value = 256 * high + low.
enum Activation { ACT_INT8 = 0, ACT_INT16 = 1, ACT_BF16 = 2, ACT_F32 = 3 };

// A tile's 32 columns as integers. `sums` has scale * sum of the row's integers, for weights that have one
// offset for 32 columns: sums[0] of all, and for weights that have two: sums[0] of the first 16, sums[1] of
// the others.
template <int PLANES>
struct IntBlock {
    int8_t planes[PLANES][TILE][GROUP];
    float scale[TILE];
    float sums[2][TILE];
};

struct BF16Block {
    uint16_t values[TILE][GROUP];
};

struct F32Block {
    float values[TILE][GROUP];
};

INLINE int64_t block_size(int activation) {
    switch (activation) {
        case ACT_INT8: return sizeof(IntBlock<1>);
        case ACT_INT16: return sizeof(IntBlock<2>);
        case ACT_BF16: return sizeof(BF16Block);
        default: return sizeof(F32Block);
    }
}

INLINE void narrow(int8_t* to, I value) {
    const I8 bytes = __builtin_convertvector(value, I8);
    std::memcpy(to, &bytes, sizeof bytes);
}

// 32 numbers of one row into its place in a block, with sums for so many spans.
template <int PLANES>
INLINE void put_integers(IntBlock<PLANES>& block, int row, int spans, F first, F second) {
    constexpr float MOST = PLANES == 1 ? 127.0f : 32639.0f;  // 32639 = 127 * 256 + 127
    const float size = largest(max(abs(first), abs(second)));
    const float inverse = size > 1e-30f ? MOST / size : 0.0f;  // what is smaller is zero
    const float scale = size / MOST;
    const I a = nearest(first * splat(inverse)), b = nearest(second * splat(inverse));
    if (PLANES == 1) {
        narrow(block.planes[0][row], a);
        narrow(block.planes[0][row] + LANES, b);
    } else {
        const I high_a = (a + splat_int(128)) >> 8, high_b = (b + splat_int(128)) >> 8;
        narrow(block.planes[0][row], high_a);
        narrow(block.planes[0][row] + LANES, high_b);
        narrow(block.planes[PLANES - 1][row], a - (high_a << 8));
        narrow(block.planes[PLANES - 1][row] + LANES, b - (high_b << 8));
    }
    block.scale[row] = scale;
    block.sums[0][row] = scale * (float)sum_int(spans == 1 ? a + b : a);
    if (spans == 2) block.sums[1][row] = scale * (float)sum_int(b);
}

// The 32 numbers of `row` in columns `column` ... of a product's left side.
INLINE void put(void* blocks, int activation, int spans, int64_t blocks_a_row, int64_t row, int64_t column, F first,
                F second) {
    char* at = (char*)blocks + (row / TILE * blocks_a_row + column / GROUP) * block_size(activation);
    const int lane = row % TILE;
    switch (activation) {
        case ACT_INT8: put_integers(*(IntBlock<1>*)at, lane, spans, first, second); break;
        case ACT_INT16: put_integers(*(IntBlock<2>*)at, lane, spans, first, second); break;
        case ACT_BF16: {
            uint16_t* to = ((BF16Block*)at)->values[lane];
            const U16 low = to_bf16(first), high = to_bf16(second);
            std::memcpy(to, &low, sizeof low);
            std::memcpy(to + LANES, &high, sizeof high);
            break;
        }
        default: {
            float* to = ((F32Block*)at)->values[lane];
            store(to, first);
            store(to + LANES, second);
        }
    }
}
