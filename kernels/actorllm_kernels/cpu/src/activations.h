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

// What weights want to know of the integers of a row besides: with one scale for 32 columns of theirs (one
// span) about all, with two about the first 16 and the others. Where codes have an offset it is scale * sum
// of the integers; where code `zero` means 0 it is -zero * sum, as an integer.
struct Wants {
    int spans, zero;
};

// A tile's 32 columns as integers.
template <int PLANES>
struct IntBlock {
    int8_t planes[PLANES][TILE][GROUP];
    float scale[TILE];
    union {
        float sums[2][TILE];
        int32_t shifts[2][TILE];
    };
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

constexpr float MOST_INT16 = 32639.0f;  // 127 * 256 + 127

// 32 numbers of one row into its place in a block.
template <int PLANES>
INLINE void put_integers(IntBlock<PLANES>& block, int row, Wants wants, F first, F second) {
    constexpr float MOST = PLANES == 1 ? 127.0f : MOST_INT16;
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
    for (int span = 0; span < wants.spans; span++) {
        const int32_t sum = sum_int(wants.spans == 1 ? a + b : span ? b : a);
        if (wants.zero) {
            block.shifts[span][row] = -wants.zero * sum;
        } else {
            block.sums[span][row] = scale * (float)sum;
        }
    }
}

// A product's left side.
struct Left {
    void* blocks;  // [rows / 16][blocks a row]
    int activation;
    Wants wants;
    int64_t blocks_a_row;
};

// The 32 numbers of `row` in block `block` of its row.
INLINE void put(const Left& left, int64_t row, int64_t block, F first, F second) {
    char* at = (char*)left.blocks + (row / TILE * left.blocks_a_row + block) * block_size(left.activation);
    const int lane = row % TILE;
    switch (left.activation) {
        case ACT_INT8: put_integers(*(IntBlock<1>*)at, lane, left.wants, first, second); break;
        case ACT_INT16: put_integers(*(IntBlock<2>*)at, lane, left.wants, first, second); break;
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
