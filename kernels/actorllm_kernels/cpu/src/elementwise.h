// What a step does besides products and attention: embedding, norms, gates, the rotary embedding.
#pragma once

#include "cache.h"
#include "linear.h"

// -- embedding ---------------------------------------------------------------------------------------

// The 32 weights of one output in a block of its strip.
INLINE void block_of_output(int weights, const uint8_t* block, int lane, float out[GROUP]) {
    if (weights >= W_BF16) {
        const int within = lane / LANES * GROUP * LANES;
        for (int k = 0; k < GROUP; k++) {
            const int pair = within + (k / 2 * LANES + lane % LANES) * 2 + k % 2;
            const int single = within + k * LANES + lane % LANES;
            if (weights == W_BF16) {
                const uint32_t bits = (uint32_t)((const uint16_t*)block)[pair] << 16;
                std::memcpy(out + k, &bits, 4);
            } else {
                out[k] = weights == W_F16 ? half_to_float(((const uint16_t*)block)[single])
                                          : ((const float*)block)[single];
            }
        }
        return;
    }
    with_codes(weights, [=](auto codes) {
        using W = decltype(codes);
        const uint8_t* half = block + lane / LANES * W::CODE_BYTES;
        const uint8_t* parameters = block + 2 * W::CODE_BYTES;
        const auto number = [=](int at) {
            return W::HALF ? half_to_float(((const uint16_t*)parameters)[at]) : ((const float*)parameters)[at];
        };
        for (int k = 0; k < GROUP; k++) {
            const int quad = k / 4, at = lane % LANES * 4 + k % 4, span = k / W::SPAN;
            const int code = W::BITS == 8 ? half[64 * quad + at] : half[64 * (quad % 4) + at] >> (quad / 4 * 4) & 15;
            const float scale = number(span * STRIP + lane);
            out[k] = W::CENTRED ? (float)(code - (1 << (W::BITS - 1))) * scale
                                : (float)code * scale + number((W::SPANS + span) * STRIP + lane);
        }
    });
}

// to[0 ... 32 * blocks) = the row `id` of the weight * scale.
static void embed(int weights, const uint8_t* packed, int64_t blocks, int64_t id, float scale, float* to) {
    const int64_t bytes = strip_block_bytes(weights);
    const uint8_t* strip = packed + id / STRIP * blocks * bytes;
    for (int64_t at = 0; at < blocks * bytes; at += 64) __builtin_prefetch(strip + at);
    for (int64_t b = 0; b < blocks; b++) {
        float values[GROUP];
        block_of_output(weights, strip + b * bytes, (int)(id % STRIP), values);
        for (int k = 0; k < GROUP; k++) to[b * GROUP + k] = values[k] * scale;
    }
}

// -- rows --------------------------------------------------------------------------------------------

// 1 / sqrt(mean of squares + eps) of a row; what stands beyond its width is zero.
INLINE float inverse_rms(const float* row, int64_t width, float eps) {
    F squares = F{};
    for (int64_t k = 0; k < width; k += LANES) {
        const F x = load_some(row + k, (int)(width - k));
        squares = fma(x, x, squares);
    }
    return 1.0f / std::sqrt(sum(squares) / (float)width + eps);
}

enum Gate { GATE_NONE = 0, GATE_SILU = 1, GATE_GELU_TANH = 2 };

INLINE F silu(F x) { return x / (splat(1.0f) + exp(-max(x, splat(-87.0f)))); }

// Hendrycks and Gimpel, arXiv 1606.08415, with the tanh.
INLINE F gelu_tanh(F x) {
    const F inner = splat(0.79788456080286536f) * fma(splat(0.044715f) * x * x, x, x);
    return splat(0.5f) * x * (splat(1.0f) + tanh(inner));
}

INLINE F gated(int gate, F x) {
    switch (gate) {
        case GATE_SILU: return silu(x);
        case GATE_GELU_TANH: return gelu_tanh(x);
        default: return x;
    }
}

struct Rows32 {
    const float* rows;  // [N, stride]
    int64_t stride, width;
    const float* norm;  // the factors of an RMS norm, zero beyond the width, or null
    float eps;
    int gate;  // the row has gate and up, one after the other, each of this width
};

// A row of float32 becomes a row of a product's left side.
static void activate(const Rows32& from, int64_t source, const Left& left, int64_t target) {
    const float* row = from.rows + source * from.stride;
    const F factor = splat(from.norm ? inverse_rms(row, from.width, from.eps) : 1.0f);
    for (int64_t block = 0; block < left.blocks_a_row; block++) {
        F part[2];
        for (int i = 0; i < 2; i++) {
            const int64_t at = block * GROUP + i * LANES;
            const int count = (int)(from.width - at);
            F x = count > 0 ? load_some(row + at, count) : F{};
            if (from.norm) x = x * factor * load(from.norm + at);
            if (from.gate) {
                const F up = count > 0 ? load_some(row + from.width + at, count) : F{};
                x = gated(from.gate, x) * up;
            }
            part[i] = x;
        }
        put(left, target, block, part[0], part[1]);
    }
}

// The sums of two products with one left side, gate and up, become the left side of the next product, whose
// blocks of columns are their strips.
static void finish_gated(int gate, const Left& left, const Area& area, const Sums* gates, const Sums* ups) {
    for (int64_t strip = area.first; strip < area.last; strip++)
        for (int64_t row = area.begin; row < area.end; row++, gates++, ups++) {
            F part[2];
            for (int half = 0; half < 2; half++)
                part[half] = gated(gate, load(*gates + half * LANES)) * load(*ups + half * LANES);
            put(left, row, strip, part[0], part[1]);
        }
}

// to += rms_norm(row) * norm, or to = it.
static void norm_row(const float* row, const float* norm, int64_t width, float eps, bool adds, float* to) {
    const F factor = splat(inverse_rms(row, width, eps));
    for (int64_t k = 0; k < width; k += LANES) {
        const int count = (int)(width - k);
        F x = load_some(row + k, count) * factor * load(norm + k);
        if (adds) x = x + load_some(to + k, count);
        store_some(to + k, x, count);
    }
}

// -- heads -------------------------------------------------------------------------------------------

struct Turn {
    const float *cosines, *sines;  // [head size / 2] of this position
    const float *q_norm, *k_norm;  // [head size rounded up to 32], or null
    float eps, scale;
};

// The head's numbers, normed and turned (Su et al., arXiv 2104.09864; pairs are half a head apart).
INLINE void turn(const float* head, const Turn& by, const float* norm, int64_t size, float out[MOST_HEAD]) {
    float plain[MOST_HEAD];
    if (norm) {
        norm_row(head, norm, size, by.eps, false, plain);
    } else {
        std::memcpy(plain, head, size * sizeof(float));
    }
    const int64_t half = size / 2;
    for (int64_t i = 0; i < half; i++) {
        out[i] = plain[i] * by.cosines[i] - plain[i + half] * by.sines[i];
        out[i + half] = plain[i + half] * by.cosines[i] + plain[i] * by.sines[i];
    }
}

// Of one token's row of q, k and v what belongs to one key-value head: q is turned, scaled and rounded to
// `queries`, k and v go into the cache.
template <class C>
static void rotate_in(const float* row, const Heads& heads, const Turn& by, int64_t head, int64_t slot,
                      char* queries, char* cache) {
    float turned[MOST_HEAD];
    const int64_t shared = heads.queries / heads.keys;
    for (int64_t h = head * shared; h < (head + 1) * shared; h++) {
        turn(row + h * heads.size, by, by.q_norm, heads.size, turned);
        put_query<C>(turned, heads, by.scale, queries + h * C::row_bytes(heads.padded));
    }
    const Part<C> part(cache, heads, slot / heads.block_size, head);
    const int64_t token = slot % heads.block_size;
    turn(row + (heads.queries + head) * heads.size, by, by.k_norm, heads.size, turned);
    put_key(turned, heads, part, token);
    std::memcpy(turned, row + (heads.queries + heads.keys + head) * heads.size, heads.size * sizeof(float));
    put_value(turned, heads, part, token);
}

static void rotate(const float* row, const Heads& heads, const Turn& by, int64_t head, int64_t slot, char* queries,
                   char* cache) {
    with_cache(heads.cache,
               [&](auto kind) { rotate_in<decltype(kind)>(row, heads, by, head, slot, queries, cache); });
}
