// Products of small matrices with float32 sums, C[M, N] = A[M, K] B[K, N].
//
// A has its words as they lie in its rows, and B is packed: row p of a packed B holds, for each column, the word of
// numbers along K that A's word p is multiplied with.

#pragma once

#include "vectors.h"

namespace {

constexpr int64_t ROWS = 96;  // rows of scores that are worked on together: they stay in the core's cache
#ifdef __AVX512BF16__
constexpr int WIDTH = 4;  // vectors of columns that are computed together: 6 x 4 sums fill 24 of 32 registers,
#else
constexpr int WIDTH = 2;  // and 6 x 2 sums 12 of 16
#endif

template <int R, int V>
void tile(const number* a, int64_t lda, const word* b, int64_t ldb, float* c, int64_t ldc, int64_t depth, bool add) {
    vec sum[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] = add ? load(c + r * ldc + v * LANES) : set(0);
    for (int64_t p = 0; p < depth; ++p) {
        words columns[V];
        for (int v = 0; v < V; ++v) columns[v] = load_words(b + p * ldb + v * LANES);
        for (int r = 0; r < R; ++r) {
            const words row = repeat(a + r * lda + PER_WORD * p);
            for (int v = 0; v < V; ++v) sum[r][v] = add_products(sum[r][v], row, columns[v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) store(c + r * ldc + v * LANES, sum[r][v]);
}

template <int V>
void tile_rows(int64_t rows, const number* a, int64_t lda, const word* b, int64_t ldb, float* c, int64_t ldc,
               int64_t depth, bool add) {
    for (; rows >= 6; rows -= 6, a += 6 * lda, c += 6 * ldc) tile<6, V>(a, lda, b, ldb, c, ldc, depth, add);
    switch (rows) {
        case 5: return tile<5, V>(a, lda, b, ldb, c, ldc, depth, add);
        case 4: return tile<4, V>(a, lda, b, ldb, c, ldc, depth, add);
        case 3: return tile<3, V>(a, lda, b, ldb, c, ldc, depth, add);
        case 2: return tile<2, V>(a, lda, b, ldb, c, ldc, depth, add);
        case 1: return tile<1, V>(a, lda, b, ldb, c, ldc, depth, add);
        default: return;
    }
}

// C[m, n] = A[m, depth words] B, or added to what C holds. n is a multiple of LANES.
void product(int64_t m, int64_t n, int64_t depth, const number* a, int64_t lda, const word* b, int64_t ldb, float* c,
             int64_t ldc, bool add) {
    int64_t first = 0;
    for (; n - first >= WIDTH * LANES; first += WIDTH * LANES)
        tile_rows<WIDTH>(m, a, lda, b + first, ldb, c + first, ldc, depth, add);
    switch ((n - first) / LANES) {
        case 3: return tile_rows<3>(m, a, lda, b + first, ldb, c + first, ldc, depth, add);
        case 2: return tile_rows<2>(m, a, lda, b + first, ldb, c + first, ldc, depth, add);
        case 1: return tile_rows<1>(m, a, lda, b + first, ldb, c + first, ldc, depth, add);
        default: return;
    }
}

// ---- packing --------------------------------------------------------------------------------------------------------

// Begin to load a row: rows that lie apart in memory are not foreseen by the processor.
inline void fetch(const number* row, int64_t size) {
    for (int64_t d = 0; d < size; d += 64 / sizeof(number))
        _mm_prefetch(reinterpret_cast<const char*>(row + d), _MM_HINT_T0);
}

// Words along a row of n numbers.
inline int64_t depth_of(int64_t n) { return (n + PER_WORD - 1) / PER_WORD; }

// Pack B = X', X being n rows of `size` numbers, a multiple of STEP: out[depth_of(size)][ld]. Row i lies at x + at(i);
// columns to ld become 0.
template <typename At>
void pack_transposed(const number* x, At at, int64_t n, int64_t size, word* out, int64_t ld) {
    for (int64_t i = 0; i < ld; i += LANES) {
        const number* rows[LANES];
        for (int64_t lane = 0; lane < LANES; ++lane) rows[lane] = i + lane < n ? x + at(i + lane) : nullptr;
        for (int64_t next = i + LANES; next < std::min(i + 2 * LANES, n); ++next) fetch(x + at(next), size);
        for (int64_t d = 0; d < size; d += STEP) {
            words r[LANES];
#pragma GCC unroll 16
            for (int lane = 0; lane < LANES; ++lane) r[lane] = rows[lane] ? load_words(rows[lane] + d) : no_words();
            turn(r);
#pragma GCC unroll 16
            for (int p = 0; p < LANES; ++p) store_words(out + (d / PER_WORD + p) * ld + i, r[p]);
        }
    }
}

// Pack B = X, X being n rows of `size` numbers: out[depth_of(n)][size]. What is missing of the last word is 0.
template <typename At>
void pack_rows(const number* x, At at, int64_t n, int64_t size, word* out) {
    for (int64_t i = 0; i < n; i += PER_WORD) {
        const number* even = x + at(i);
        const number* odd = PER_WORD == 2 && i + 1 < n ? x + at(i + 1) : nullptr;
        for (int64_t next = i + 4 * PER_WORD; next < std::min(i + 5 * PER_WORD, n); ++next) fetch(x + at(next), size);
        for (int64_t d = 0; d < size; d += LANES)
            store_words(out + i / PER_WORD * size + d, across(even + d, odd ? odd + d : nullptr));
    }
}

// Store rows of float32 twice over: as rows of an A, and packed as a B. n is a multiple of LANES.
void round_rows(const float* x, int64_t ld, int64_t rows, int64_t n, number* as_a, word* as_b) {
    for (int64_t r = 0; as_a && r < rows; ++r)
        for (int64_t j = 0; j < n; j += LANES) store(as_a + r * ld + j, load(x + r * ld + j));
    for (int64_t r = 0; as_b && r < rows; r += PER_WORD) {
        const float* odd = PER_WORD == 2 && r + 1 < rows ? x + (r + 1) * ld : nullptr;
        for (int64_t j = 0; j < n; j += LANES)
            store_words(as_b + r / PER_WORD * ld + j, across(x + r * ld + j, odd ? odd + j : nullptr));
    }
}

// Copy rows as the columns of an A: out[size][ld], with zeros up to the next multiple of STEP, which ld holds.
template <typename At>
void transpose(const number* x, At at, int64_t rows, int64_t size, number* out, int64_t ld) {
    for (int64_t first = 0; first < rows; first += STEP)
        for (int64_t d = 0; d < size; d += LANES) {
            words r[LANES];
            for (int i = 0; i < LANES; ++i) {
                const int64_t even = first + PER_WORD * i, odd = even + 1;
                r[i] = even < rows ? across(x + at(even) + d, odd < rows ? x + at(odd) + d : nullptr) : no_words();
            }
            turn(r);
            for (int i = 0; i < LANES; ++i) store_words(out + (d + i) * ld + first, r[i]);
        }
}

}  // namespace
