// What stands between the products of a layer, for one row; `learning.py` says what the arguments are. Numbers are
// rounded to bfloat16 where the modules of transformers round them.

#pragma once

#include "softmax.h"

namespace {

__m512 round_once(__m512 x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bf16(x)), 16));
}

// 1 / (1 + e to the power of -x)
__m512 sigmoid(__m512 x) {
    const __m512 one = _mm512_set1_ps(1), e = exponential(_mm512_sub_ps(_mm512_setzero_ps(), x));
    return _mm512_div_ps(one, _mm512_add_ps(one, e));
}

// A row over its root mean square, times a weight; returns what it was multiplied by.
float norm_row(const bf16* in, const bf16* weight, int64_t size, float epsilon, bf16* out) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t d = 0; d < size; d += LANES) sum = _mm512_fmadd_ps(load(in + d), load(in + d), sum);
    const float found = 1 / std::sqrt(_mm512_reduce_add_ps(sum) / static_cast<float>(size) + epsilon);
    const __m512 scale = _mm512_set1_ps(found);
    for (int64_t d = 0; d < size; d += LANES) {
        const __m512 even = round_once(_mm512_mul_ps(load(in + d), scale));
        store(out + d, _mm512_mul_ps(load(weight + d), even));
    }
    return found;
}

void silu_row(const bf16* gate, const bf16* up, int64_t size, bf16* out) {
    for (int64_t d = 0; d < size; d += LANES) {
        const __m512 g = load(gate + d);
        const __m512 activated = round_once(_mm512_mul_ps(g, sigmoid(g)));
        store(out + d, _mm512_mul_ps(activated, load(up + d)));
    }
}

// Rotate pairs (d, d + size / 2) of a head by the token's angles; `out` may be where it lies.
void rotate_head(const bf16* in, const bf16* cosines, const bf16* sines, int64_t size, bf16* out) {
    const int64_t half = size / 2;
    for (int64_t d = 0; d < half; d += LANES) {
        const __m512 a = load(in + d), b = load(in + half + d);
        const bf16 *c = cosines + d, *s = sines + d;
        const __m512 first = _mm512_sub_ps(round_once(_mm512_mul_ps(a, load(c))), round_once(_mm512_mul_ps(b, load(s))));
        const __m512 second =
            _mm512_add_ps(round_once(_mm512_mul_ps(b, load(c + half))), round_once(_mm512_mul_ps(a, load(s + half))));
        store(out + d, first);
        store(out + half + d, second);
    }
}

}  // namespace
