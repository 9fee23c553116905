// What stands between the products of a layer, for one row; `learning.py` says what the arguments are. Numbers are
// rounded where the modules of transformers round them.

#pragma once

#include "softmax.h"

namespace {

// 1 / (1 + e to the power of -x)
vec sigmoid(vec x) { return set(1) / (set(1) + exponential(set(0) - x)); }

// A row over its root mean square, times a weight; returns what it was multiplied by.
float norm_row(const number* in, const number* weight, int64_t size, float epsilon, number* out) {
    vec sum = set(0);
    for (int64_t d = 0; d < size; d += LANES) sum = fma(load(in + d), load(in + d), sum);
    const float scale = 1 / std::sqrt(sum_of(sum) / static_cast<float>(size) + epsilon);
    for (int64_t d = 0; d < size; d += LANES)
        store(out + d, load(weight + d) * round_once(load(in + d) * set(scale)));
    return scale;
}

void silu_row(const number* gate, const number* up, int64_t size, number* out) {
    for (int64_t d = 0; d < size; d += LANES) {
        const vec g = load(gate + d);
        store(out + d, round_once(g * sigmoid(g)) * load(up + d));
    }
}

// Rotate pairs (d, d + size / 2) of a head by the token's angles; `out` may be where it lies.
void rotate_head(const number* in, const number* cosines, const number* sines, int64_t size, number* out) {
    const int64_t half = size / 2;
    for (int64_t d = 0; d < half; d += LANES) {
        const vec a = load(in + d), b = load(in + half + d);
        const number *c = cosines + d, *s = sines + d;
        store(out + d, round_once(a * load(c)) - round_once(b * load(s)));
        store(out + half + d, round_once(b * load(c + half)) + round_once(a * load(s + half)));
    }
}

}  // namespace
