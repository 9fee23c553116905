// Low-rank adapters beside linear layers of bfloat16 while learning; `learning.py` says what the arguments are.

#ifdef __AVX512BF16__

#include <omp.h>

#include "dots.h"

namespace {

// y = W x + scale B A x, with the gradients of A and B.
struct Adapter {
    const float *a, *b;  // [rank, inputs], [outputs, rank]
    int64_t rank, inputs, outputs;  // sizes are multiples of 32
    float scale;
    int64_t filled() const { return rounded(rank, 4); }  // ranks are filled up by zeros
};

// The first `n` of 32 float32 numbers, rounded, and zeros behind them.
__m512i rounded_pairs(const float* x, int64_t n) {
    const __m512 low = _mm512_maskz_loadu_ps(between(0, 0, n), x);
    const __m512 high = _mm512_maskz_loadu_ps(between(LANES, 0, n), x + LANES);
    return _mm512_inserti64x4(_mm512_castsi256_si512(to_bf16(low)), to_bf16(high), 1);
}

__m256i halves(__m512i pairs, int shift) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, shift)); }

// Hand `put` the pairs (2p, 2p + 1) of a matrix's ranks for 16 places: put(p, place, pairs).
template <typename Put>
void each_pair(const float* matrix, bool transposed, int64_t rank, int64_t size, Put put) {
    const int64_t pairs = rounded(rank, 4) / 2;
    for (int64_t i = 0; i < size; i += LANES) {
        if (!transposed) {
            for (int64_t p = 0; p < pairs; ++p) {
                const __mmask16 first = 2 * p < rank ? 0xffff : 0, second = 2 * p + 1 < rank ? 0xffff : 0;
                const __m512 even = _mm512_maskz_loadu_ps(first, matrix + 2 * p * size + i);
                const __m512 odd = _mm512_maskz_loadu_ps(second, matrix + (2 * p + 1) * size + i);
                put(p, i, interleaved(to_bf16(even), to_bf16(odd)));
            }
            continue;
        }
        for (int64_t r = 0; r < rank; r += 2 * LANES) {
            __m512i x[LANES];
            for (int lane = 0; lane < LANES; ++lane)
                x[lane] = rounded_pairs(matrix + (i + lane) * rank + r, rank - r);
            turn(x);
            for (int64_t p = r / 2; p < std::min(pairs, r / 2 + LANES); ++p) put(p, i, x[p - r / 2]);
        }
    }
}

// A matrix as rows that others are multiplied with, [filled, size], and packed as a B, [filled / 2][size].
void as_rows(const float* matrix, bool transposed, int64_t rank, int64_t size, number* out) {
    each_pair(matrix, transposed, rank, size, [&](int64_t p, int64_t i, __m512i pairs) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * p * size + i), halves(pairs, 0));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + (2 * p + 1) * size + i), halves(pairs, 16));
    });
}

void as_pairs(const float* matrix, bool transposed, int64_t rank, int64_t size, word* out) {
    each_pair(matrix, transposed, rank, size, [&](int64_t p, int64_t i, __m512i pairs) {
        _mm512_storeu_si512(out + p * size + i, pairs);
    });
}

// y += scale low b for up to four rows and V times 16 columns.
template <int V>
void add_columns(const number* low, int64_t rows, int64_t pairs, const word* b, int64_t size, float scale, number* y) {
    __m512 sum[4][V];
    for (int r = 0; r < 4; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] = _mm512_setzero_ps();
    for (int64_t p = 0; p < pairs; ++p)
        for (int r = 0; r < 4; ++r) {
            int two;
            std::memcpy(&two, low + (r < rows ? r : 0) * 2 * pairs + 2 * p, sizeof two);
            for (int v = 0; v < V; ++v)
                sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)_mm512_set1_epi32(two),
                                             (__m512bh)_mm512_loadu_si512(b + p * size + v * LANES));
        }
    for (int r = 0; r < rows; ++r)
        for (int v = 0; v < V; ++v) {
            number* to = y + r * size + v * LANES;
            store(to, _mm512_fmadd_ps(sum[r][v], _mm512_set1_ps(scale), load(to)));
        }
}

// out = scale low' x for N rows of low' and 32 columns of x.
template <int N>
void outer_columns(const word* low, int64_t pairs, const number* x, int64_t tokens, int64_t size, float scale,
                   float* out) {
    __m512 sum[N][2];
    for (int n = 0; n < N; ++n) sum[n][0] = sum[n][1] = _mm512_setzero_ps();
    for (int64_t p = 0; p < pairs; ++p) {
        __m512bh columns[2];
        for (int v = 0; v < 2; ++v) {
            const number* even = x + 2 * p * size + v * LANES;
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

// Low numbers [tokens, filled] as pairs of tokens, [filled][tokens / 2].
void turn_low(const number* low, int64_t filled, int64_t tokens, word* out) {
    const int64_t pairs = (tokens + 1) / 2;
    for (int64_t p = 0; p < pairs; ++p)
        for (int64_t r = 0; r < filled; ++r) {
            const word odd = 2 * p + 1 < tokens ? low[(2 * p + 1) * filled + r] : 0;
            out[r * pairs + p] = low[2 * p * filled + r] | odd << 16;
        }
}

// Four rows: low = x down', rounded, and then y += scale low up, unless y is null.
void adapt_rows(const number* x, int64_t rows, int64_t inputs, const number* down, int64_t filled, const word* up,
                int64_t outputs, float scale, number* low, number* y) {
    for (int64_t r = 0; r < filled; r += 4) {
        alignas(32) std::uint64_t each[4];
        const __m512 found = sums_of<0>(rows, x, inputs, down + r * inputs, inputs, nullptr);
        _mm256_store_si256(reinterpret_cast<__m256i*>(each), to_bf16(found));
        for (int64_t i = 0; i < rows; ++i) std::memcpy(low + i * filled + r, each + i, sizeof *each);
    }
    int64_t d = 0;
    for (; y && d + 64 <= outputs; d += 64) add_columns<4>(low, rows, filled / 2, up + d, outputs, scale, y + d);
    for (; y && d < outputs; d += 32) add_columns<2>(low, rows, filled / 2, up + d, outputs, scale, y + d);
}

// Columns d..d + 31 of out [filled, size] = scale low' x.
void outer(const word* low, int64_t filled, const number* x, int64_t tokens, int64_t size, int64_t d, float scale,
           float* out) {
    const int64_t pairs = (tokens + 1) / 2;
    int64_t r = 0;
    for (; r + 8 <= filled; r += 8)
        outer_columns<8>(low + r * pairs, pairs, x + d, tokens, size, scale, out + r * size + d);
    for (; r < filled; r += 4)
        outer_columns<4>(low + r * pairs, pairs, x + d, tokens, size, scale, out + r * size + d);
}

}  // namespace

extern "C" {

// y [tokens, outputs] += scale B A x; low [tokens, filled] is A x. Each thread rounds the matrices for itself, which
// costs less than waiting for another.
void adapt(const Adapter* in, const number* x, int64_t tokens, number* low, number* y) {
    const int64_t filled = in->filled();
#pragma omp parallel
    {
        number* down = scratch<number>(0, filled * in->inputs);
        word* up = scratch<word>(1, filled / 2 * in->outputs);
        as_rows(in->a, false, in->rank, in->inputs, down);
        as_pairs(in->b, true, in->rank, in->outputs, up);
#pragma omp for schedule(static)
        for (int64_t t = 0; t < tokens; t += 4)
            adapt_rows(x + t * in->inputs, std::min<int64_t>(4, tokens - t), in->inputs, down, filled, up, in->outputs,
                       in->scale, low + t * filled, y + t * in->outputs);
    }
}

// grad_x [tokens, inputs] += the adapter's part, unless it is null; gradients of A [filled, inputs] and of B, turned,
// [filled, outputs].
void adapt_back(const Adapter* in, const number* x, const number* low, const number* grad, int64_t tokens,
                number* grad_x, float* grad_a, float* grad_b) {
    const int64_t filled = in->filled(), inputs = in->inputs, outputs = in->outputs, pairs = (tokens + 1) / 2;
    number* low_grad = scratch<number>(2, tokens * filled);
#pragma omp parallel
    {
        number* down = scratch<number>(0, filled * outputs);
        word* up = scratch<word>(1, filled / 2 * inputs);
        as_rows(in->b, true, in->rank, outputs, down);
        as_pairs(in->a, false, in->rank, inputs, up);
#pragma omp for schedule(static)
        for (int64_t t = 0; t < tokens; t += 4)
            adapt_rows(grad + t * outputs, std::min<int64_t>(4, tokens - t), outputs, down, filled, up, inputs,
                       in->scale, low_grad + t * filled, grad_x ? grad_x + t * inputs : nullptr);
        word* of_inputs = scratch<word>(3, filled * pairs);
        word* of_outputs = scratch<word>(4, filled * pairs);
        turn_low(low_grad, filled, tokens, of_inputs);
        turn_low(low, filled, tokens, of_outputs);
#pragma omp for schedule(static)
        for (int64_t d = 0; d < inputs + outputs; d += 32) {
            if (d < inputs)
                outer(of_inputs, filled, x, tokens, inputs, d, in->scale, grad_a);
            else
                outer(of_outputs, filled, grad, tokens, outputs, d - inputs, in->scale, grad_b);
        }
    }
}

}  // extern "C"

#endif
