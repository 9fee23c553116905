// What stands between the products of a layer, each in one pass over its numbers, and the gradients; `learning.py` says
// what the arguments are.

#include <omp.h>

#include "layers.h"

namespace {

// Numbers from which a second thread pays: below, one is done before another has begun.
constexpr int64_t MANY = 32768;

}  // namespace

extern "C" {

void rms_norm(const bf16* x, const bf16* weight, int64_t rows, int64_t size, float epsilon, bf16* y, float* scales) {
#pragma omp parallel for schedule(static) if (rows * size > MANY)
    for (int64_t r = 0; r < rows; ++r) scales[r] = norm_row(x + r * size, weight, size, epsilon, y + r * size);
}

void rms_norm_backward(const bf16* x, const bf16* weight, const float* scales, const bf16* grad, int64_t rows,
                       int64_t size, bf16* of_x) {
#pragma omp parallel for schedule(static) if (rows * size > MANY)
    for (int64_t r = 0; r < rows; ++r) {
        const bf16 *in = x + r * size, *g = grad + r * size;
        const __m512 scale = _mm512_set1_ps(scales[r]);
        __m512 sum = _mm512_setzero_ps();
        for (int64_t d = 0; d < size; d += LANES) {
            const __m512 of_even = _mm512_mul_ps(load(g + d), load(weight + d));
            sum = _mm512_fmadd_ps(of_even, _mm512_mul_ps(load(in + d), scale), sum);
        }
        const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / static_cast<float>(size));
        for (int64_t d = 0; d < size; d += LANES) {
            const __m512 of_even = _mm512_mul_ps(load(g + d), load(weight + d));
            const __m512 even = _mm512_mul_ps(load(in + d), scale);
            store(of_x + r * size + d, _mm512_mul_ps(scale, _mm512_fnmadd_ps(even, mean, of_even)));
        }
    }
}

void silu_product(const bf16* gate, const bf16* up, int64_t gate_row, int64_t up_row, int64_t rows, int64_t size,
                  bf16* out) {
#pragma omp parallel for schedule(static) if (rows * size > MANY)
    for (int64_t r = 0; r < rows; ++r) silu_row(gate + r * gate_row, up + r * up_row, size, out + r * size);
}

void silu_product_backward(const bf16* gate, const bf16* up, int64_t gate_row, int64_t up_row, const bf16* grad,
                           int64_t rows, int64_t size, bf16* of_gate, bf16* of_up) {
#pragma omp parallel for schedule(static) if (rows * size > MANY)
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t d = 0; d < size; d += LANES) {
            const __m512 g = load(gate + r * gate_row + d), u = load(up + r * up_row + d);
            const __m512 whole = load(grad + r * size + d), s = sigmoid(g);
            store(of_up + r * size + d, _mm512_mul_ps(whole, round_once(_mm512_mul_ps(g, s))));
            // d/dg (g s(g)) = s (1 + g (1 - s))
            const __m512 one = _mm512_set1_ps(1);
            const __m512 slope = _mm512_mul_ps(s, _mm512_fmadd_ps(g, _mm512_sub_ps(one, s), one));
            store(of_gate + r * size + d, _mm512_mul_ps(_mm512_mul_ps(whole, u), slope));
        }
}

// Rotate pairs (d, d + size / 2) of each head by the token's angles; back by them where `back` is set.
void rotate(const bf16* x, int64_t head_stride, int64_t token_stride, const bf16* cosines, const bf16* sines,
            int64_t tokens, int64_t heads, int64_t size, bool back, bf16* out) {
    const int64_t half = size / 2;
#pragma omp parallel for schedule(static) if (tokens * heads * size > MANY)
    for (int64_t t = 0; t < tokens; ++t)
        for (int64_t h = 0; h < heads; ++h) {
            const bf16* in = x + h * head_stride + t * token_stride;
            bf16* to = out + (t * heads + h) * size;
            const bf16 *c = cosines + t * size, *s = sines + t * size;
            if (!back) {
                rotate_head(in, c, s, size, to);
                continue;
            }
            for (int64_t d = 0; d < half; d += LANES) {
                const __m512 a = load(in + d), b = load(in + half + d);
                store(to + d, _mm512_fmadd_ps(b, load(s + half + d), _mm512_mul_ps(a, load(c + d))));
                store(to + half + d, _mm512_fnmadd_ps(a, load(s + d), _mm512_mul_ps(b, load(c + half + d))));
            }
        }
}

}  // extern "C"
