// Softmax of rows of scores, in float32.

#pragma once

#include <cmath>

#include "product.h"

namespace {

constexpr float HIDDEN = -1e30f;  // score of a key that is not seen: finite, so that no difference is NaN

// e to the power of x <= 0, to the last bits of a float32; 0 below -110.
vec exponential(vec x) {
    x = larger(x, set(-110.0f));
    const vec n = nearest_integer(x * set(1.44269504f));
    // x - n log 2, the constant in two parts so that nothing is lost.
    vec f = fnma(n, set(0.693359375f), x);
    f = fnma(n, set(-2.12194440e-4f), f);
    vec y = set(1.0f / 720);
    for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) y = fma(y, f, set(c));
    return times_power_of_two(y, n);
}

// Scale and squash scores, hide those whose bit in `seen(j)` is 0, and return the largest. n is a multiple of LANES.
template <typename Seen>
float finish_scores(float* s, int64_t n, float scale, float softcap, Seen seen) {
    vec top = set(HIDDEN);
    for (int64_t j = 0; j < n; j += LANES) {
        vec x = load(s + j) * set(scale);
        if (softcap > 0) {
            alignas(64) float each[LANES];
            store(each, x);
            for (float& one : each) one = softcap * std::tanh(one / softcap);
            x = load(each);
        }
        x = choose(seen(j), x, set(HIDDEN));
        store(s + j, x);
        top = larger(top, x);
    }
    return largest_of(top);
}

// Replace scores by exp(score - top), and return their sum.
float exponentials(float* s, int64_t n, float top) {
    vec sum = set(0);
    for (int64_t j = 0; j < n; j += LANES) {
        const vec e = exponential(load(s + j) - set(top));
        store(s + j, e);
        sum = sum + e;
    }
    return sum_of(sum);
}

void scale_row(float* x, int64_t n, float by) {
    for (int64_t j = 0; j < n; j += LANES) store(x + j, load(x + j) * set(by));
}

// Lanes of LANES positions from `first` on that lie in low..high - 1.
mask between(int64_t first, int64_t low, int64_t high) {
    if (low <= first && first + LANES <= high) return ALL;
    const auto upto = [first](int64_t end) {
        const int64_t n = std::clamp<int64_t>(end - first, 0, LANES);
        return (1u << n) - 1;
    };
    return static_cast<mask>(upto(high) & ~upto(low));
}

// A tensor [heads, tokens, size], its numbers of one head and token side by side.
struct Strided {
    const number* data;
    int64_t head, token;
    const number* at(int64_t h, int64_t t) const { return data + h * head + t * token; }
};

struct Heads {
    int64_t query, key, size;
    int64_t groups() const { return query / key; }
};

}  // namespace
