// Products of rows of bfloat16 with rows of bfloat16, as they lie: C[M, N] = A[M, K] B[N, K]'.
//
// Rows of both have their pairs side by side, so 16 pairs of one are multiplied with 16 of the other, and each product
// has 16 partial sums that are added up at its end.

#pragma once

#include "softmax.h"

namespace {

// R rows with four others, R being at most 4: lane 4 r + n of the result belongs to row r and the n-th of the others. K
// is a multiple of 32. For each 32 of it P lines of memory from `ahead` on begin to be loaded, so that the processor is
// never asked for many at once.
template <int R, int P>
vec sums(const number* x, int64_t row, const number* weight, int64_t inputs, const char* ahead) {
    vec sum[R][4], of_row[4];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) sum[r][n] = set(0);
    for (int64_t k = 0; k < inputs; k += STEP) {
        words w[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) w[n] = load_words(weight + n * inputs + k);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) _mm_prefetch(ahead + 64 * p, _MM_HINT_T0);
        ahead += 64 * P;
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const words of_row = load_words(x + r * row + k);
#pragma GCC unroll 4
            for (int n = 0; n < 4; ++n) sum[r][n] = add_products(sum[r][n], of_row, w[n]);
        }
    }
    // Neighbouring lanes are added first, then those of whole groups of four.
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
        if (r >= R) {
            of_row[r] = set(0);
            continue;
        }
        const vec* s = sum[r];
        const vec low = _mm512_unpacklo_ps(s[0], s[1]) + _mm512_unpackhi_ps(s[0], s[1]);
        const vec high = _mm512_unpacklo_ps(s[2], s[3]) + _mm512_unpackhi_ps(s[2], s[3]);
        of_row[r] = _mm512_shuffle_ps(low, high, 0x44) + _mm512_shuffle_ps(low, high, 0xee);
    }
    const auto halves = [](vec one, vec other) {
        return _mm512_shuffle_f32x4(one, other, 0x44) + _mm512_shuffle_f32x4(one, other, 0xee);
    };
    const vec first = halves(of_row[0], of_row[1]), second = halves(of_row[2], of_row[3]);
    return _mm512_shuffle_f32x4(first, second, 0x88) + _mm512_shuffle_f32x4(first, second, 0xdd);
}

template <int P>
vec sums_of(int64_t rows, const number* x, int64_t row, const number* weight, int64_t inputs, const char* ahead) {
    switch (rows) {
        case 1: return sums<1, P>(x, row, weight, inputs, ahead);
        case 2: return sums<2, P>(x, row, weight, inputs, ahead);
        case 3: return sums<3, P>(x, row, weight, inputs, ahead);
        default: return sums<4, P>(x, row, weight, inputs, ahead);
    }
}

}  // namespace
