// Low-rank adapters beside linear layers while learning; `adapters.py` says what the arguments are.

#include <omp.h>

#include "dots.h"

namespace {

// A matrix of the adapter in float32, [rank, size], either as it lies or transposed.
struct Matrix {
    const float* data;
    int64_t rank, size;
    bool transposed;
    float at(int64_t r, int64_t i) const {
        return r >= rank ? 0 : transposed ? data[i * rank + r] : data[r * size + i];
    }
};

pair both(float even, float odd) {
    const __m512 two = _mm512_castps128_ps512(_mm_set_ps(0, 0, odd, even));
    return static_cast<pair>(_mm256_extract_epi32(to_bf16(two), 0));
}

// y += low b for up to four rows and V times 16 columns.
template <int V>
void add_columns(const bf16* low, int64_t rows, int64_t pairs, const pair* b, int64_t size, bf16* y) {
    __m512 sum[4][V];
    for (int r = 0; r < 4; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] = r < rows ? load(y + r * size + v * LANES) : _mm512_setzero_ps();
    for (int64_t p = 0; p < pairs; ++p)
        for (int r = 0; r < 4; ++r) {
            int two;
            std::memcpy(&two, low + (r < rows ? r : 0) * 2 * pairs + 2 * p, sizeof two);
            for (int v = 0; v < V; ++v)
                sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)_mm512_set1_epi32(two),
                                             (__m512bh)_mm512_loadu_si512(b + p * size + v * LANES));
        }
    for (int r = 0; r < rows; ++r)
        for (int v = 0; v < V; ++v) store(y + r * size + v * LANES, sum[r][v]);
}

// out = scale low' x for N rows of low' and 32 columns of x.
template <int N>
void outer_columns(const pair* low, int64_t pairs, const bf16* x, int64_t tokens, int64_t size, float scale,
                   float* out) {
    __m512 sum[N][2];
    for (int n = 0; n < N; ++n) sum[n][0] = sum[n][1] = _mm512_setzero_ps();
    for (int64_t p = 0; p < pairs; ++p) {
        __m512bh columns[2];
        for (int v = 0; v < 2; ++v) {
            const bf16* even = x + 2 * p * size + v * LANES;
            const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even));
            const __m256i second = 2 * p + 1 < tokens
                                       ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + size))
                                       : _mm256_setzero_si256();
            columns[v] = (__m512bh)interleaved(first, second);
        }
        for (int n = 0; n < N; ++n) {
            const __m512bh two = (__m512bh)_mm512_set1_epi32(static_cast<int>(low[n * pairs + p]));
            for (int v = 0; v < 2; ++v) sum[n][v] = _mm512_dpbf16_ps(sum[n][v], two, columns[v]);
        }
    }
    for (int n = 0; n < N; ++n)
        for (int v = 0; v < 2; ++v)
            _mm512_storeu_ps(out + n * size + v * LANES, _mm512_mul_ps(sum[n][v], _mm512_set1_ps(scale)));
}

}  // namespace

extern "C" {

// low = x down', rounded, and then y += scale low up, unless y is null. Ranks are filled up to a multiple of 4 by zeros: low is
// [tokens, rank]. Sizes are multiples of 32.
void adapt(const bf16* x, int64_t tokens, const Matrix* down, const Matrix* up, float scale, bf16* low, bf16* y) {
    const int64_t rank = rounded(down->rank, 4), pairs = rank / 2, inputs = down->size, size = up->size;
    bf16* a = scratch<bf16>(0, rank * inputs);
    pair* b = scratch<pair>(1, pairs * size);
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < inputs; ++i)
            for (int64_t r = 0; r < rank; ++r) a[r * inputs + i] = static_cast<bf16>(both(down->at(r, i), 0));
#pragma omp for schedule(static)
        for (int64_t i = 0; i < size; ++i)
            for (int64_t p = 0; p < pairs; ++p)
                b[p * size + i] = both(scale * up->at(2 * p, i), scale * up->at(2 * p + 1, i));
#pragma omp for schedule(static)
        for (int64_t first = 0; first < tokens; first += 4) {
            const int64_t rows = std::min<int64_t>(4, tokens - first);
            for (int64_t r = 0; r < rank; r += 4) {
                alignas(32) std::uint64_t each[4];
                const __m512 found = sums_of(rows, x + first * inputs, inputs, a + r * inputs, inputs);
                _mm256_store_si256(reinterpret_cast<__m256i*>(each), to_bf16(found));
                for (int64_t i = 0; i < rows; ++i) std::memcpy(low + (first + i) * rank + r, each + i, sizeof *each);
            }
            int64_t d = 0;
            for (; y && d + 64 <= size; d += 64)
                add_columns<4>(low + first * rank, rows, pairs, b + d, size, y + first * size + d);
            for (; y && d < size; d += 32)
                add_columns<2>(low + first * rank, rows, pairs, b + d, size, y + first * size + d);
        }
    }
}

// out[rank, size] = scale low' x, low being [tokens, rank] with a rank that is a multiple of 4.
void outer_product(const bf16* low, int64_t rank, const bf16* x, int64_t tokens, int64_t size, float scale,
                   float* out) {
    const int64_t pairs = (tokens + 1) / 2;
    pair* turned = scratch<pair>(2, rank * pairs);
    for (int64_t p = 0; p < pairs; ++p)
        for (int64_t r = 0; r < rank; ++r) {
            const pair odd = 2 * p + 1 < tokens ? low[(2 * p + 1) * rank + r] : 0;
            turned[r * pairs + p] = low[2 * p * rank + r] | odd << 16;
        }
#pragma omp parallel for schedule(static)
    for (int64_t d = 0; d < size; d += 32) {
        int64_t r = 0;
        for (; r + 8 <= rank; r += 8)
            outer_columns<8>(turned + r * pairs, pairs, x + d, tokens, size, scale, out + r * size + d);
        for (; r < rank; r += 4)
            outer_columns<4>(turned + r * pairs, pairs, x + d, tokens, size, scale, out + r * size + d);
    }
}

}  // extern "C"
