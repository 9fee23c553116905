// Vectors of the processor, so that one source compiles for several instruction sets.
//
// With AVX512-BF16 the numbers of tensors are bfloat16, with AVX2 they are float32; sums are float32. A word is 32 bits
// along K: two neighbouring bfloat16, or one float32. One instruction multiplies the words of two vectors and adds them
// to float32 sums, both products of a pair at once. (Float32 has no use for AVX-512: few rows do not fill its vectors.
// On an EPYC a step of eight rows took 16 ms with AVX2 and 25 ms with AVX-512.)

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

using std::int64_t;
using word = std::uint32_t;

#ifdef __AVX512BF16__

using vec = __m512;        // float32
using words = __m512i;
using mask = __mmask16;    // a bit for each lane
constexpr int64_t LANES = 16;
constexpr mask ALL = 0xffff;

inline vec set(float x) { return _mm512_set1_ps(x); }
inline vec load(const float* x) { return _mm512_loadu_ps(x); }
inline void store(float* to, vec x) { _mm512_storeu_ps(to, x); }
inline vec fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }    // a b + c
inline vec fnma(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
inline vec larger(vec a, vec b) { return _mm512_max_ps(a, b); }
inline float sum_of(vec x) { return _mm512_reduce_add_ps(x); }
inline float largest_of(vec x) { return _mm512_reduce_max_ps(x); }
inline vec nearest_integer(vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
inline vec times_power_of_two(vec x, vec n) { return _mm512_scalef_ps(x, n); }

// Lanes of `where` from x, the others from `other`.
inline vec choose(mask where, vec x, vec other) { return _mm512_mask_blend_ps(where, other, x); }
inline mask equal(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline mask is_nan_or_plus_infinity(vec x) { return _mm512_fpclass_ps_mask(x, 0x01 | 0x08 | 0x80); }
inline vec load_some(const float* x, mask where) { return _mm512_maskz_loadu_ps(where, x); }
inline void store_some(float* to, vec x, mask where) { _mm512_mask_storeu_ps(to, where, x); }

// Lanes of `where` whose integer is greater than `than`.
inline mask greater(const int* x, int than, mask where) {
    const words some = _mm512_maskz_loadu_epi32(where, x);
    return _mm512_mask_cmpgt_epi32_mask(where, some, _mm512_set1_epi32(than));
}

inline words no_words() { return _mm512_setzero_si512(); }
inline words load_words(const void* x) { return _mm512_loadu_si512(x); }
inline void store_words(void* to, words x) { _mm512_storeu_si512(to, x); }
inline words as_words(vec x) { return _mm512_castps_si512(x); }
inline vec as_vec(words x) { return _mm512_castsi512_ps(x); }

// A word in all lanes.
inline words repeat(const void* x) {
    int bits;
    std::memcpy(&bits, x, sizeof bits);
    return _mm512_set1_epi32(bits);
}

// Transpose LANES rows of LANES words.
inline void turn(words r[LANES]) {
    words t[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    // A group of four lanes holds one column of four rows now; groups are gathered from all rows.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        const words a = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
        const words b = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
        const words d = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
        const words e = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        t[c] = _mm512_shuffle_i32x4(a, b, 0x88);
        t[4 + c] = _mm512_shuffle_i32x4(d, e, 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(a, b, 0xdd);
        t[12 + c] = _mm512_shuffle_i32x4(d, e, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = t[i];
}

using number = std::uint16_t;  // bfloat16
constexpr int64_t PER_WORD = 2;

inline __m256i to_bf16(vec x) { return (__m256i)_mm512_cvtneps_pbh(x); }
inline vec widened(__m256i x) { return as_vec(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

inline words interleaved(__m256i even, __m256i odd) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

inline vec load(const number* x) { return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))); }
inline void store(number* to, vec x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), to_bf16(x)); }
inline vec load_some(const number* x, mask where) { return widened(_mm256_maskz_loadu_epi16(where, x)); }
inline void store_some(number* to, vec x, mask where) { _mm256_mask_storeu_epi16(to, where, to_bf16(x)); }

// A float32 rounded as one that is stored.
inline vec round_once(vec x) { return widened(to_bf16(x)); }

// sum + a b, both products of each word.
inline vec add_products(vec sum, words a, words b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

// Words of two rows that lie apart, a number from each; a row that is null is 0.
inline words across(const number* even, const number* odd) {
    const auto halves = [](const number* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); };
    return interleaved(halves(even), odd ? halves(odd) : _mm256_setzero_si256());
}

inline words across(const float* even, const float* odd) {
    return interleaved(to_bf16(load(even)), odd ? to_bf16(load(odd)) : _mm256_setzero_si256());
}

#else  // AVX2

using vec = __m256;
using words = __m256i;
using mask = unsigned;
constexpr int64_t LANES = 8;
constexpr mask ALL = 0xff;

inline vec set(float x) { return _mm256_set1_ps(x); }
inline vec load(const float* x) { return _mm256_loadu_ps(x); }
inline void store(float* to, vec x) { _mm256_storeu_ps(to, x); }
inline vec fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
inline vec fnma(vec a, vec b, vec c) { return _mm256_fnmadd_ps(a, b, c); }
inline vec larger(vec a, vec b) { return _mm256_max_ps(a, b); }

inline float sum_of(vec x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

inline float largest_of(vec x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

inline vec nearest_integer(vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// In two steps, each with a normal number: n is at least -159, and 2 to the power of 254 overflows as a whole.
inline vec times_power_of_two(vec x, vec n) {
    const __m256i whole = _mm256_cvtps_epi32(_mm256_min_ps(n, set(254))), half = _mm256_srai_epi32(whole, 1);
    const auto power = [](__m256i e) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
    };
    return x * power(half) * power(_mm256_sub_epi32(whole, half));
}

inline __m256i lanes_of(mask where) {
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(where)), bits), bits);
}

inline vec choose(mask where, vec x, vec other) {
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(lanes_of(where)));
}

inline mask equal(vec a, vec b) { return static_cast<mask>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ))); }

inline mask is_nan_or_plus_infinity(vec x) {
    const vec largest = _mm256_set1_ps(std::numeric_limits<float>::max());
    return static_cast<mask>(_mm256_movemask_ps(_mm256_cmp_ps(x, largest, _CMP_NLE_UQ)));
}

inline vec load_some(const float* x, mask where) {
    return where == ALL ? load(x) : _mm256_maskload_ps(x, lanes_of(where));
}

inline void store_some(float* to, vec x, mask where) { _mm256_maskstore_ps(to, lanes_of(where), x); }

inline mask greater(const int* x, int than, mask where) {
    const __m256i some = _mm256_maskload_epi32(x, lanes_of(where));
    const __m256i above = _mm256_cmpgt_epi32(some, _mm256_set1_epi32(than));
    return where & static_cast<mask>(_mm256_movemask_ps(_mm256_castsi256_ps(above)));
}

inline words no_words() { return _mm256_setzero_si256(); }
inline words load_words(const void* x) { return _mm256_loadu_si256(static_cast<const __m256i*>(x)); }
inline void store_words(void* to, words x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
inline words as_words(vec x) { return _mm256_castps_si256(x); }
inline vec as_vec(words x) { return _mm256_castsi256_ps(x); }

inline words repeat(const void* x) {
    int bits;
    std::memcpy(&bits, x, sizeof bits);
    return _mm256_set1_epi32(bits);
}

inline void turn(words r[LANES]) {
    words t[LANES];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm256_permute2x128_si256(r[i], r[4 + i], 0x20);
        t[4 + i] = _mm256_permute2x128_si256(r[i], r[4 + i], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = t[i];
}

using number = float;
constexpr int64_t PER_WORD = 1;

inline vec round_once(vec x) { return x; }
inline vec add_products(vec sum, words a, words b) { return fma(as_vec(a), as_vec(b), sum); }
inline words across(const float* row, const float*) { return load_words(row); }

#endif

constexpr int64_t STEP = LANES * PER_WORD;  // numbers along K in a vector

inline int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Memory that a thread keeps from call to call, one vector for each use.
template <typename T>
T* scratch(int use, int64_t size) {
    thread_local std::vector<T> kept[12];
    if (static_cast<int64_t>(kept[use].size()) < size) kept[use].resize(size);
    return kept[use].data();
}

}  // namespace
