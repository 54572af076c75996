// Sixteen lanes of float32 or int32, on whatever the compiler was told that the CPU has.
//
// GCC's and Clang's vector extensions do the arithmetic; what they cannot say (fused multiply-add, dot
// products of bytes and of bfloat16) is written here once for AVX-512, AVX2 and plain C++.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#define SIMD_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SIMD_AVX2 1
#endif

// Vectors wider than the CPU's never leave inlined code; and some intrinsics begin with what is undefined.
#pragma GCC diagnostic ignored "-Wpsabi"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#define INLINE static inline __attribute__((always_inline))

constexpr int LANES = 16;

typedef float F __attribute__((vector_size(64)));
typedef int32_t I __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(64)));
typedef int8_t I8 __attribute__((vector_size(16)));
typedef uint16_t U16 __attribute__((vector_size(32)));

INLINE F load(const float* from) {
    F value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

INLINE Bytes load_bytes(const void* from) {
    Bytes value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

INLINE void store(float* to, F value) { std::memcpy(to, &value, sizeof value); }

// Of the lanes only the first `count`.
INLINE void store_some(float* to, F value, int count) {
    if (count >= LANES) {
        store(to, value);
    } else {
        float all[LANES];
        store(all, value);
        for (int i = 0; i < count; i++) to[i] = all[i];
    }
}

// The lanes beyond `count` are zero.
INLINE F load_some(const float* from, int count) {
    if (count >= LANES) return load(from);
    float all[LANES] = {};
    for (int i = 0; i < count; i++) all[i] = from[i];
    return load(all);
}

INLINE F splat(float x) {
#if SIMD_AVX512
    return (F)_mm512_set1_ps(x);
#else
    return F{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#endif
}

INLINE I splat_int(int32_t x) { return I{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

INLINE F to_float(I x) { return __builtin_convertvector(x, F); }

INLINE F fma(F a, F b, F c) {
#if SIMD_AVX512
    return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif SIMD_AVX2
    struct Halves {
        __m256 half[2];
    } x, y, z;
    std::memcpy(&x, &a, 64);
    std::memcpy(&y, &b, 64);
    std::memcpy(&z, &c, 64);
    for (int i = 0; i < 2; i++) z.half[i] = _mm256_fmadd_ps(x.half[i], y.half[i], z.half[i]);
    std::memcpy(&c, &z, 64);
    return c;
#else
    return a * b + c;
#endif
}

INLINE F max(F a, F b) {
#if SIMD_AVX512
    return (F)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return a > b ? a : b;
#endif
}

INLINE F abs(F a) { return (F)((I)a & splat_int(0x7fffffff)); }

// Sums and maxima over the lanes, in one fixed order.
INLINE float sum(F a) {
    float x[LANES];
    store(x, a);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

INLINE float largest(F a) {
#if SIMD_AVX512
    return _mm512_reduce_max_ps((__m512)a);
#else
    float x[LANES];
    store(x, a);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
#endif
}

INLINE int32_t sum_int(I a) {
#if SIMD_AVX512
    return _mm512_reduce_add_epi32((__m512i)a);
#else
    int32_t total = 0;
    for (int i = 0; i < LANES; i++) total += a[i];
    return total;
#endif
}

// The nearest integers, halves to even; |a| must be below 2 ** 22.
INLINE I nearest(F a) {
    const F magic = splat(12582912.0f);
    return (I)(a + magic) - splat_int(0x4b400000);
}

// 64 integers, |x| <= 32639, in two planes of signed bytes: x = 256 * high + low.
INLINE void to_planes(const I x[4], void* high, void* low) {
#if SIMD_AVX512
    const __m512i half = _mm512_set1_epi32(128);
    __m512i words[2], bytes[2];
    for (int i = 0; i < 2; i++)  // x + 128 in 16 bits: its high byte is high, its low byte is low + 128
        words[i] = _mm512_packs_epi32(_mm512_add_epi32((__m512i)x[2 * i], half),
                                      _mm512_add_epi32((__m512i)x[2 * i + 1], half));
    bytes[0] = _mm512_packs_epi16(_mm512_srai_epi16(words[0], 8), _mm512_srai_epi16(words[1], 8));
    const __m512i mask = _mm512_set1_epi16(255);
    bytes[1] = _mm512_packus_epi16(_mm512_and_si512(words[0], mask), _mm512_and_si512(words[1], mask));
    bytes[1] = _mm512_xor_si512(bytes[1], _mm512_set1_epi8((char)128));
    // Packing takes 128 bits of each in turn.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(high, _mm512_permutexvar_epi32(order, bytes[0]));
    _mm512_storeu_si512(low, _mm512_permutexvar_epi32(order, bytes[1]));
#else
    for (int i = 0; i < 4; i++) {
        const I upper = (x[i] + splat_int(128)) >> 8;
        const I8 first = __builtin_convertvector(upper, I8), second = __builtin_convertvector(x[i] - (upper << 8), I8);
        std::memcpy((char*)high + i * LANES, &first, sizeof first);
        std::memcpy((char*)low + i * LANES, &second, sizeof second);
    }
#endif
}

// e ** a with a relative error below 2e-7; a <= 88. Range reduction by ln 2 in two parts (Cody and Waite,
// 1980), then the Taylor polynomial of degree 7, whose remainder on [-ln 2 / 2, ln 2 / 2] is 6e-9.
INLINE F exp(F a) {
    a = max(a, splat(-87.0f));
    const I n = nearest(a * splat(1.44269504088896341f));
    const F whole = to_float(n);
    F r = fma(whole, splat(-0.693359375f), a);
    r = fma(whole, splat(2.12194440e-4f), r);
    F p = splat(1.0f / 5040);
    p = fma(p, r, splat(1.0f / 720));
    p = fma(p, r, splat(1.0f / 120));
    p = fma(p, r, splat(1.0f / 24));
    p = fma(p, r, splat(1.0f / 6));
    p = fma(p, r, splat(0.5f));
    p = fma(p, r, splat(1.0f));
    p = fma(p, r, splat(1.0f));
    return p * (F)((n + splat_int(127)) << 23);
}

INLINE F tanh(F a) {
    const F twice = max(-abs(a) * splat(2.0f), splat(-80.0f));
    const F e = exp(twice);
    const F t = (splat(1.0f) - e) / (splat(1.0f) + e);
    return (F)((I)t | ((I)a & splat_int((int32_t)0x80000000)));
}

// -- bfloat16 and float16 ----------------------------------------------------------------------------

// Rounded to the nearest bfloat16, halves to even; what is not finite stays so.
INLINE U16 to_bf16(F a) {
#if SIMD_AVX512
    U16 out;
    const __m256bh rounded = _mm512_cvtneps_pbh((__m512)a);
    std::memcpy(&out, &rounded, sizeof out);
    return out;
#else
    typedef uint32_t U __attribute__((vector_size(64)));
    const U bits = (U)a;
    const U odd = (bits >> 16) & 1u;
    return __builtin_convertvector((bits + 0x7fffu + odd) >> 16, U16);
#endif
}

INLINE float half_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    uint32_t bits;
    float value;
    if (magnitude >= 0x7c00) {
        bits = sign | 0x7f800000 | (magnitude & 0x3ff) << 13;
    } else if (magnitude >= 0x400) {
        bits = sign | ((magnitude << 13) + 0x38000000);
    } else {
        value = (float)magnitude * 5.9604644775390625e-08f;
        std::memcpy(&bits, &value, 4);
        bits |= sign;
    }
    std::memcpy(&value, &bits, 4);
    return value;
}

INLINE F from_half(const uint16_t* from) {
#if SIMD_AVX512
    return (F)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif SIMD_AVX2
    struct Halves {
        __m256 half[2];
    } x;
    for (int i = 0; i < 2; i++) x.half[i] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from + i));
    F value;
    std::memcpy(&value, &x, 64);
    return value;
#else
    float all[LANES];
    for (int i = 0; i < LANES; i++) all[i] = half_to_float(from[i]);
    return load(all);
#endif
}

// -- dot products ------------------------------------------------------------------------------------

// c + a[2 i] * b[0] + a[2 i + 1] * b[1] in each lane i; `a` are pairs of bfloat16, `pair` is one pair.
INLINE F dot_bf16(F c, Bytes a, uint32_t pair) {
#if SIMD_AVX512
    const __m512i both = _mm512_set1_epi32((int32_t)pair);
    return (F)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)both);
#else
    float low, high;
    const uint32_t low_bits = pair << 16, high_bits = pair & 0xffff0000;
    std::memcpy(&low, &low_bits, 4);
    std::memcpy(&high, &high_bits, 4);
    const I bits = (I)a;
    c = fma((F)(bits & splat_int((int32_t)0xffff0000)), splat(high), c);
    return fma((F)(bits << 16), splat(low), c);
#endif
}

// c + the sum of a[4 i + j] * b[j] over j in each lane i; `a` are unsigned bytes below 16 (or any, if
// WIDE), `four` is four signed bytes.
template <bool WIDE>
INLINE I dot_bytes(I c, Bytes a, int32_t four) {
#if SIMD_AVX512
    return (I)_mm512_dpbusd_epi32((__m512i)c, (__m512i)a, _mm512_set1_epi32(four));
#elif SIMD_AVX2
    struct Halves {
        __m256i half[2];
    } x, z;
    std::memcpy(&x, &a, 64);
    std::memcpy(&z, &c, 64);
    const __m256i b = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
    for (int i = 0; i < 2; i++) {
        // Two products of a nibble and a byte fit into 16 bits; two of a byte and a byte do not.
        const __m256i first = WIDE ? _mm256_and_si256(x.half[i], low) : x.half[i];
        __m256i products = _mm256_madd_epi16(_mm256_maddubs_epi16(first, b), ones);
        if (WIDE) {
            const __m256i second = _mm256_and_si256(_mm256_srli_epi16(x.half[i], 4), low);
            const __m256i more = _mm256_madd_epi16(_mm256_maddubs_epi16(second, b), ones);
            products = _mm256_add_epi32(products, _mm256_slli_epi32(more, 4));
        }
        z.half[i] = _mm256_add_epi32(z.half[i], products);
    }
    std::memcpy(&c, &z, 64);
    return c;
#else
    // A product fits into 16 bits; a lane has two of them.
    typedef int16_t Words __attribute__((vector_size(64)));
    int8_t b[4];
    std::memcpy(b, &four, 4);
    const I bits = (I)a, mask = splat_int(0x00ff00ff);
    for (int j = 0; j < 2; j++) {
        const Words pair = (Words)splat_int((b[j] & 0xffff) | (int32_t)((uint32_t)b[j + 2] << 16));
        const I products = (I)((Words)(bits >> (8 * j) & mask) * pair);
        c += (products << 16 >> 16) + (products >> 16);
    }
    return c;
#endif
}
