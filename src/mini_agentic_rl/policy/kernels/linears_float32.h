// float32: the rows of a group are the lanes of a vector, and each weight is multiplied with all of them. In terms of
// product.h, A is the weight and B are the rows. Few rows then fill the vectors, and no sum over lanes is needed.

#pragma once

#include "product.h"

namespace {

constexpr int64_t OUTPUTS = LANES;  // of the layer that are computed together
constexpr int64_t CHUNK = 64;       // numbers along K between two prefetches

// Prefetch weights into the L2 cache: L1 has too few outstanding misses to use the whole memory bandwidth.
void fetch_later(const number* x, int64_t size) {
    for (int64_t k = 0; k < size; k += 64 / sizeof(number))
        _mm_prefetch(reinterpret_cast<const char*>(x + k), _MM_HINT_T1);
}

struct Input {
    const word* x;  // [groups][inputs][group]
    int64_t rows, inputs, group;

    // Each thread packs the rows for itself, which costs less than waiting for another.
    Input(const number* of_rows, int64_t row, int64_t rows, int64_t inputs)
        : rows(rows), inputs(inputs), group(rows > LANES ? 2 * LANES : LANES) {
        word* packed = scratch<word>(7, groups() * inputs * group);
        const auto at = [row](int64_t r) { return r * row; };
        for (int64_t g = 0; g < groups(); ++g)
            pack_transposed(of_rows + g * group * row, at, count(g), inputs, packed + g * inputs * group, group);
        x = packed;
    }

    int64_t groups() const { return (rows + group - 1) / group; }
    int64_t count(int64_t g) const { return std::min(group, rows - g * group); }
    const word* of_group(int64_t g) const { return x + g * inputs * group; }
    int64_t low_words() const { return group; }
};

// Outputs of low rank, A x, of the rows of a group: [ranks][group].
void lower(const Linear& layer, const Input& in, int64_t g, word* low) {
    product(layer.ranks, in.group, in.inputs, layer.a, in.inputs, in.of_group(g), in.group,
            reinterpret_cast<float*>(low), in.group, false);
}

// OUTPUTS rows of A with one or two vectors of a group: 8 accumulators in 16 registers hide the latency of FMA.
void tile_of_group(const Input& in, const number* a, int64_t lda, const word* b, float* c, int64_t depth, bool add) {
    if (in.group == LANES) return tile<OUTPUTS, 1>(a, lda, b, LANES, c, LANES, depth, add);
    for (int64_t n = 0; n < OUTPUTS; n += OUTPUTS / 2)
        tile<OUTPUTS / 2, 2>(a + n * lda, lda, b, in.group, c + n * in.group, in.group, depth, add);
}

// OUTPUTS outputs of all rows. B of the adapter is [outputs, ranks].
void outputs_of(const Linear& layer, const Input& in, int64_t place, const word* low, int64_t low_rows) {
    const int64_t first = place * OUTPUTS;
    const number* weight = layer.weight + first * in.inputs;
    const number* b = reinterpret_cast<const number*>(layer.b) + first * layer.ranks;
    for (int64_t g = 0; g < in.groups(); ++g) {
        alignas(64) float sums[OUTPUTS * 2 * LANES];
        for (int64_t k = 0; k < in.inputs; k += CHUNK) {
            const int64_t some = std::min(CHUNK, in.inputs - k);
            if (g == 0)
                for (int64_t n = 0; n < OUTPUTS; ++n) fetch_later(weight + (OUTPUTS + n) * in.inputs + k, some);
            tile_of_group(in, weight + k, in.inputs, in.of_group(g) + k * in.group, sums, some, k > 0);
        }
        if (layer.ranks) tile_of_group(in, b, layer.ranks, low + g * low_rows, sums, layer.ranks, true);
        number* out = layer.out + g * in.group * layer.outputs + first;
        for (int64_t r = 0; r < in.count(g); r += LANES) {
            words rows[LANES];
            for (int64_t n = 0; n < OUTPUTS; ++n)
                rows[n] = as_words(load(sums + n * in.group + r) + set(layer.bias ? layer.bias[first + n] : 0));
            turn(rows);
            for (int64_t i = 0; i < std::min(LANES, in.count(g) - r); ++i)
                store_words(out + (r + i) * layer.outputs, rows[i]);
        }
    }
}

}  // namespace
