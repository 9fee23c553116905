// Softmax of rows of scores, in float32.

#pragma once

#include <cmath>

#include "product.h"

namespace {

constexpr float HIDDEN = -1e30f;  // score of a key that is not seen: finite, so that no difference is NaN

// e to the power of x <= 0, to the last bits of a float32; 0 below -110.
__m512 exponential(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-110.0f));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    // x - n log 2, the constant in two parts so that nothing is lost.
    __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    f = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), f);
    __m512 y = _mm512_set1_ps(1.0f / 720);
    for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(c));
    return _mm512_scalef_ps(y, n);
}

// Scale and squash scores, hide those whose bit in `seen(j)` is 0, and return the largest. n is a multiple of 16.
template <typename Seen>
float finish_scores(float* s, int64_t n, float scale, float softcap, Seen seen) {
    __m512 top = _mm512_set1_ps(HIDDEN);
    for (int64_t j = 0; j < n; j += LANES) {
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(s + j), _mm512_set1_ps(scale));
        if (softcap > 0) {
            alignas(64) float each[LANES];
            _mm512_store_ps(each, x);
            for (float& one : each) one = softcap * std::tanh(one / softcap);
            x = _mm512_load_ps(each);
        }
        x = _mm512_mask_blend_ps(seen(j), _mm512_set1_ps(HIDDEN), x);
        _mm512_storeu_ps(s + j, x);
        top = _mm512_max_ps(top, x);
    }
    return _mm512_reduce_max_ps(top);
}

// Replace scores by exp(score - top), and return their sum.
float exponentials(float* s, int64_t n, float top) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t j = 0; j < n; j += LANES) {
        const __m512 e = exponential(_mm512_sub_ps(_mm512_loadu_ps(s + j), _mm512_set1_ps(top)));
        _mm512_storeu_ps(s + j, e);
        sum = _mm512_add_ps(sum, e);
    }
    return _mm512_reduce_add_ps(sum);
}

void scale_row(float* x, int64_t n, float by) {
    for (int64_t j = 0; j < n; j += LANES)
        _mm512_storeu_ps(x + j, _mm512_mul_ps(_mm512_loadu_ps(x + j), _mm512_set1_ps(by)));
}

// Lanes of 16 positions from `first` on that lie in low..high - 1.
__mmask16 between(int64_t first, int64_t low, int64_t high) {
    if (low <= first && first + LANES <= high) return 0xffff;
    const auto upto = [first](int64_t end) {
        const int64_t n = std::clamp<int64_t>(end - first, 0, LANES);
        return (1u << n) - 1;
    };
    return static_cast<__mmask16>(upto(high) & ~upto(low));
}

// A tensor [heads, tokens, size], its numbers of one head and token side by side.
struct Strided {
    const bf16* data;
    int64_t head, token;
    const bf16* at(int64_t h, int64_t t) const { return data + h * head + t * token; }
};

struct Heads {
    int64_t query, key, size;
    int64_t groups() const { return query / key; }
};

}  // namespace
