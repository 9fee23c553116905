// Products of small matrices in bfloat16 with float32 sums, C[M, N] = A[M, K] B[K, N], for processors with
// AVX512-BF16.
//
// The processor multiplies pairs: a lane of 32 bits holds two neighbours along K, and one instruction adds both
// products to a float32. So A has its pairs as they lie in its rows, and B is packed: row p of a packed B holds, for
// each column, the pair (2p, 2p + 1).

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using bf16 = std::uint16_t;
using pair = std::uint32_t;  // two bf16
using std::int64_t;

constexpr int64_t LANES = 16;
constexpr int64_t ROWS = 96;  // rows of scores that are worked on together: they stay in the core's cache

int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Memory that a thread keeps from call to call, one vector for each use.
template <typename T>
T* scratch(int use, int64_t size) {
    thread_local std::vector<T> kept[12];
    if (static_cast<int64_t>(kept[use].size()) < size) kept[use].resize(size);
    return kept[use].data();
}

template <int R, int V>
void tile(const bf16* a, int64_t lda, const pair* b, int64_t ldb, float* c, int64_t ldc, int64_t pairs, bool add) {
    __m512 sum[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] = add ? _mm512_loadu_ps(c + r * ldc + v * LANES) : _mm512_setzero_ps();
    for (int64_t p = 0; p < pairs; ++p) {
        __m512bh columns[V];
        for (int v = 0; v < V; ++v) columns[v] = (__m512bh)_mm512_loadu_si512(b + p * ldb + v * LANES);
        for (int r = 0; r < R; ++r) {
            int both;
            std::memcpy(&both, a + r * lda + 2 * p, sizeof both);
            const __m512bh row = (__m512bh)_mm512_set1_epi32(both);
            for (int v = 0; v < V; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], row, columns[v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) _mm512_storeu_ps(c + r * ldc + v * LANES, sum[r][v]);
}

template <int V>
void tile_rows(int64_t rows, const bf16* a, int64_t lda, const pair* b, int64_t ldb, float* c, int64_t ldc,
               int64_t pairs, bool add) {
    for (; rows >= 6; rows -= 6, a += 6 * lda, c += 6 * ldc) tile<6, V>(a, lda, b, ldb, c, ldc, pairs, add);
    switch (rows) {
        case 5: return tile<5, V>(a, lda, b, ldb, c, ldc, pairs, add);
        case 4: return tile<4, V>(a, lda, b, ldb, c, ldc, pairs, add);
        case 3: return tile<3, V>(a, lda, b, ldb, c, ldc, pairs, add);
        case 2: return tile<2, V>(a, lda, b, ldb, c, ldc, pairs, add);
        case 1: return tile<1, V>(a, lda, b, ldb, c, ldc, pairs, add);
        default: return;
    }
}

// C[m, n] = A[m, 2 pairs] B, or added to what C holds. n is a multiple of 16.
void product(int64_t m, int64_t n, int64_t pairs, const bf16* a, int64_t lda, const pair* b, int64_t ldb, float* c,
             int64_t ldc, bool add) {
    int64_t first = 0;
    for (; n - first >= 64; first += 64) tile_rows<4>(m, a, lda, b + first, ldb, c + first, ldc, pairs, add);
    switch ((n - first) / LANES) {
        case 3: return tile_rows<3>(m, a, lda, b + first, ldb, c + first, ldc, pairs, add);
        case 2: return tile_rows<2>(m, a, lda, b + first, ldb, c + first, ldc, pairs, add);
        case 1: return tile_rows<1>(m, a, lda, b + first, ldb, c + first, ldc, pairs, add);
        default: return;
    }
}

// ---- packing --------------------------------------------------------------------------------------------------------

// Begin to load a row: rows that lie apart in memory are not foreseen by the processor.
inline void fetch(const bf16* row, int64_t size) {
    for (int64_t d = 0; d < size; d += 2 * LANES) _mm_prefetch(reinterpret_cast<const char*>(row + d), _MM_HINT_T0);
}

// Turn 16 rows of 16 lanes into columns.
inline void turn(__m512i r[16]) {
    __m512i t[16];
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
        const __m512i a = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
        const __m512i b = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
        const __m512i e = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        t[c] = _mm512_shuffle_i32x4(a, b, 0x88);
        t[4 + c] = _mm512_shuffle_i32x4(d, e, 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(a, b, 0xdd);
        t[12 + c] = _mm512_shuffle_i32x4(d, e, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// Pack B = X', X being n rows of `size` numbers, a multiple of 32: out[size / 2][ld]. Row i lies at x + at(i); columns
// to ld become 0.
template <typename At>
void pack_transposed(const bf16* x, At at, int64_t n, int64_t size, pair* out, int64_t ld) {
    for (int64_t i = 0; i < ld; i += LANES) {
        const bf16* rows[LANES];
        for (int64_t lane = 0; lane < LANES; ++lane) rows[lane] = i + lane < n ? x + at(i + lane) : nullptr;
        for (int64_t next = i + LANES; next < std::min(i + 2 * LANES, n); ++next) fetch(x + at(next), size);
        for (int64_t d = 0; d < size; d += 2 * LANES) {
            __m512i r[LANES];
#pragma GCC unroll 16
            for (int lane = 0; lane < LANES; ++lane)
                r[lane] = rows[lane] ? _mm512_loadu_si512(rows[lane] + d) : _mm512_setzero_si512();
            turn(r);
#pragma GCC unroll 16
            for (int p = 0; p < LANES; ++p) _mm512_storeu_si512(out + (d / 2 + p) * ld + i, r[p]);
        }
    }
}

__m512i interleaved(__m256i even, __m256i odd) {
    const __m512i low = _mm512_cvtepu16_epi32(even), high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16);
    return _mm512_or_si512(low, high);
}

// Pack B = X, X being n rows of `size` numbers: out[(n + 1) / 2][size]. A missing last row is 0.
template <typename At>
void pack_rows(const bf16* x, At at, int64_t n, int64_t size, pair* out) {
    for (int64_t i = 0; i < n; i += 2) {
        const bf16* even = x + at(i);
        const bf16* odd = i + 1 < n ? x + at(i + 1) : nullptr;
        for (int64_t next = i + 8; next < std::min(i + 10, n); ++next) fetch(x + at(next), size);
        for (int64_t d = 0; d < size; d += LANES) {
            const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + d));
            const __m256i b =
                odd ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + d)) : _mm256_setzero_si256();
            _mm512_storeu_si512(out + i / 2 * size + d, interleaved(a, b));
        }
    }
}

__m256i to_bf16(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

__m512 load(const bf16* x) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

void store(bf16* to, __m512 x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), to_bf16(x)); }

// Round rows of float32 twice over: as rows of an A, and packed as a B. n is a multiple of 16, odd rows end with a 0.
void round_rows(const float* x, int64_t ld, int64_t rows, int64_t n, bf16* as_a, pair* as_b) {
    for (int64_t r = 0; r < rows; r += 2)
        for (int64_t j = 0; j < n; j += LANES) {
            const __m256i even = to_bf16(_mm512_loadu_ps(x + r * ld + j));
            const __m256i odd =
                r + 1 < rows ? to_bf16(_mm512_loadu_ps(x + (r + 1) * ld + j)) : _mm256_setzero_si256();
            if (as_a) {
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(as_a + r * ld + j), even);
                if (r + 1 < rows) _mm256_storeu_si256(reinterpret_cast<__m256i*>(as_a + (r + 1) * ld + j), odd);
            }
            if (as_b) _mm512_storeu_si512(as_b + r / 2 * ld + j, interleaved(even, odd));
        }
}

// Copy rows of bf16 as the columns of an A: out[size][ld], with zeros up to the next multiple of 32, which ld holds.
template <typename At>
void transpose(const bf16* x, At at, int64_t rows, int64_t size, bf16* out, int64_t ld) {
    const auto load_row = [&](int64_t r, int64_t d) {
        return r < rows ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + at(r) + d)) : _mm256_setzero_si256();
    };
    for (int64_t first = 0; first < rows; first += 2 * LANES)
        for (int64_t d = 0; d < size; d += LANES) {
            __m512i pairs[LANES];
            for (int i = 0; i < LANES; ++i)
                pairs[i] = interleaved(load_row(first + 2 * i, d), load_row(first + 2 * i + 1, d));
            turn(pairs);
            for (int i = 0; i < LANES; ++i) _mm512_storeu_si512(out + (d + i) * ld + first, pairs[i]);
        }
}

}  // namespace
