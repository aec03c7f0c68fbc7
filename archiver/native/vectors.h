// Vectors as long as the processor's registers: 16 numbers with AVX-512, 8 otherwise.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int PANEL = 16;
#if defined(__AVX512BW__)
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
constexpr int PARTS = PANEL / LANES;
constexpr int ROWS = LANES == 16 ? 12 : 6;  // computed together, so that their sums and the weights fill the registers

int64_t up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

typedef float F __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef uint32_t W __attribute__((vector_size(4 * LANES)));
typedef int16_t S __attribute__((vector_size(4 * LANES)));
typedef uint16_t U __attribute__((vector_size(4 * LANES)));
typedef uint16_t H __attribute__((vector_size(2 * LANES)));
typedef int8_t B __attribute__((vector_size(LANES)));

template <class V, class T> V load(const T* at) {
    V value;
    memcpy(&value, at, sizeof value);
    return value;
}
template <class T, class V> void store(T* at, V value) { memcpy(at, &value, sizeof value); }
F splat(float value) { return F{} + value; }
F widen(const float* at) { return load<F>(at); }
#if defined(__AVX512BW__)
F widen(const uint16_t* at) { return (F)((W)_mm512_cvtepu16_epi32((__m256i)load<H>(at)) << 16); }
#elif defined(__AVX2__)
F widen(const uint16_t* at) { return (F)((W)_mm256_cvtepu16_epi32((__m128i)load<H>(at)) << 16); }
#else
F widen(const uint16_t* at) { return (F)(__builtin_convertvector(load<H>(at), W) << 16); }
#endif
void narrow(float value, float* at) { *at = value; }
void narrow(float value, uint16_t* at) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    *at = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// For each pair of neighbours, the sum of their two products.
inline I pairs(S left, S right) {
#if defined(__AVX512BW__)
    return (I)_mm512_madd_epi16((__m512i)left, (__m512i)right);
#elif defined(__AVX2__)
    return (I)_mm256_madd_epi16((__m256i)left, (__m256i)right);
#else
    return ((I)left << 16 >> 16) * ((I)right << 16 >> 16) + ((I)left >> 16) * ((I)right >> 16);
#endif
}

// Adds the products of four weights and four inputs to each sum. The result is the same on every processor.
I dot(I sum, I weights, I inputs) {
#if defined(__AVX512VNNI__)
    return (I)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)inputs);
#elif defined(__AVXVNNI__)
    return (I)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, (__m256i)inputs);
#else
    return sum + pairs((S)weights & 255, (S)inputs << 8 >> 8) + pairs((S)((U)weights >> 8), (S)inputs >> 8);
#endif
}

float total(F value) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += value[lane];
    return sum;
}
F larger(F left, F right) { return left > right ? left : right; }
float largest(F value) {
    float most = value[0];
    for (int lane = 1; lane < LANES; lane++) most = std::max(most, value[lane]);
    return most;
}

// e to the power of each number, exact to the last place or two: as a power of 2, whose whole part goes into the
// exponent, and whose rest is computed by a polynomial.
F power(F value) {
    F times = larger(value * 1.44269504f, splat(-126.0f));
    times = times < 126.0f ? times : splat(126.0f);
    I whole = __builtin_convertvector(times + (times < 0.0f ? splat(-0.5f) : splat(0.5f)), I);
    F rest = (times - __builtin_convertvector(whole, F)) * 0.69314718f;
    F sum = splat(1.0f / 5040);
    for (float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) sum = sum * rest + factor;
    return sum * (F)((whole + 127) << 23);
}

}  // namespace
