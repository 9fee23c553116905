// What stands between the products of a layer, each in one pass over its numbers, and the gradients; `learning.py` says
// what the arguments are.

#include <omp.h>

#include "layers.h"

namespace {

// Numbers from which a second thread pays: below, one is done before another has begun.
constexpr int64_t MANY = 32768;

}  // namespace

extern "C" {

void rms_norm(const number* x, const number* weight, int64_t rows, int64_t size, float epsilon, number* y,
              float* scales) {
#pragma omp parallel for schedule(static) if (rows * size > MANY)
    for (int64_t r = 0; r < rows; ++r) scales[r] = norm_row(x + r * size, weight, size, epsilon, y + r * size);
}

void rms_norm_backward(const number* x, const number* weight, const float* scales, const number* grad, int64_t rows,
                       int64_t size, number* of_x) {
#pragma omp parallel for schedule(static) if (rows * size > MANY)
    for (int64_t r = 0; r < rows; ++r) {
        const number *in = x + r * size, *g = grad + r * size;
        const vec scale = set(scales[r]);
        vec sum = set(0);
        for (int64_t d = 0; d < size; d += LANES)
            sum = fma(load(g + d) * load(weight + d), load(in + d) * scale, sum);
        const vec mean = set(sum_of(sum) / static_cast<float>(size));
        for (int64_t d = 0; d < size; d += LANES)
            store(of_x + r * size + d, scale * fnma(load(in + d) * scale, mean, load(g + d) * load(weight + d)));
    }
}

void silu_product(const number* gate, const number* up, int64_t gate_row, int64_t up_row, int64_t rows, int64_t size,
                  number* out) {
#pragma omp parallel for schedule(static) if (rows * size > MANY)
    for (int64_t r = 0; r < rows; ++r) silu_row(gate + r * gate_row, up + r * up_row, size, out + r * size);
}

void silu_product_backward(const number* gate, const number* up, int64_t gate_row, int64_t up_row, const number* grad,
                           int64_t rows, int64_t size, number* of_gate, number* of_up) {
#pragma omp parallel for schedule(static) if (rows * size > MANY)
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t d = 0; d < size; d += LANES) {
            const vec g = load(gate + r * gate_row + d), u = load(up + r * up_row + d);
            const vec whole = load(grad + r * size + d), s = sigmoid(g);
            store(of_up + r * size + d, whole * round_once(g * s));
            // d/dg (g s(g)) = s (1 + g (1 - s))
            const vec slope = s * fma(g, set(1) - s, set(1));
            store(of_gate + r * size + d, whole * u * slope);
        }
}

// Rotate pairs (d, d + size / 2) of each head by the token's angles; back by them where `back` is set.
void rotate(const number* x, int64_t head_stride, int64_t token_stride, const number* cosines, const number* sines,
            int64_t tokens, int64_t heads, int64_t size, bool back, number* out) {
    const int64_t half = size / 2;
#pragma omp parallel for schedule(static) if (tokens * heads * size > MANY)
    for (int64_t t = 0; t < tokens; ++t)
        for (int64_t h = 0; h < heads; ++h) {
            const number* in = x + h * head_stride + t * token_stride;
            number* to = out + (t * heads + h) * size;
            const number *c = cosines + t * size, *s = sines + t * size;
            if (!back) {
                rotate_head(in, c, s, size, to);
                continue;
            }
            for (int64_t d = 0; d < half; d += LANES) {
                const vec a = load(in + d), b = load(in + half + d);
                store(to + d, fma(b, load(s + half + d), a * load(c + d)));
                store(to + half + d, fnma(a, load(s + d), b * load(c + half + d)));
            }
        }
}

}  // extern "C"
