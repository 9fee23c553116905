// float32: a group of rows lies side by side in vectors, and each weight is multiplied with all of them. As a product
// (product.h) A is the weight, and B the rows: so few rows use the processor's whole width, and no lanes are added up.

#pragma once

#include "product.h"

namespace {

constexpr int64_t GROUP = LANES;    // rows,
constexpr int64_t OUTPUTS = LANES;  // and outputs that they are multiplied with together
constexpr int64_t CHUNK = 64;       // numbers along K between two times that memory is asked for

struct Input {
    const word* x;  // [groups][inputs][GROUP]
    int64_t rows, inputs;

    // Each thread packs the rows for itself, which costs less than waiting for another.
    Input(const number* of_rows, int64_t row, int64_t rows, int64_t inputs) : rows(rows), inputs(inputs) {
        word* packed = scratch<word>(7, groups() * inputs * GROUP);
        const auto at = [row](int64_t r) { return r * row; };
        for (int64_t g = 0; g < groups(); ++g)
            pack_transposed(of_rows + g * GROUP * row, at, count(g), inputs, packed + g * inputs * GROUP, GROUP);
        x = packed;
    }

    int64_t groups() const { return (rows + GROUP - 1) / GROUP; }
    int64_t count(int64_t group) const { return std::min(GROUP, rows - group * GROUP); }
    const word* of_group(int64_t group) const { return x + group * inputs * GROUP; }
};

// Outputs of low rank, A x, of the rows of a group: [ranks][GROUP].
void lower(const Linear& layer, const Input& in, int64_t group, word* low) {
    tile_rows<1>(layer.ranks, layer.a, in.inputs, in.of_group(group), GROUP, reinterpret_cast<float*>(low), GROUP,
                 in.inputs, false);
}

// OUTPUTS outputs of all rows. B of the adapter is [outputs, ranks].
void outputs_of(const Linear& layer, const Input& in, int64_t place, const word* low, int64_t low_rows) {
    const int64_t first = place * OUTPUTS;
    const number* weight = layer.weight + first * in.inputs;
    const number* b = reinterpret_cast<const number*>(layer.b) + first * layer.ranks;
    for (int64_t group = 0; group < in.groups(); ++group) {
        alignas(64) float sums[OUTPUTS * GROUP];
        for (int64_t k = 0; k < in.inputs; k += CHUNK) {
            const int64_t some = std::min(CHUNK, in.inputs - k);
            if (group == 0)
                for (int64_t n = 0; n < OUTPUTS; ++n) fetch(weight + (OUTPUTS + n) * in.inputs + k, some);
            tile<OUTPUTS, 1>(weight + k, in.inputs, in.of_group(group) + k * GROUP, GROUP, sums, GROUP, some, k > 0);
        }
        if (layer.ranks)
            tile<OUTPUTS, 1>(b, layer.ranks, low + group * low_rows, GROUP, sums, GROUP, layer.ranks, true);
        words rows[LANES];
        for (int64_t n = 0; n < OUTPUTS; ++n)
            rows[n] = as_words(load(sums + n * GROUP) + set(layer.bias ? layer.bias[first + n] : 0));
        turn(rows);
        number* out = layer.out + group * GROUP * layer.outputs + first;
        for (int64_t r = 0; r < in.count(group); ++r) store_words(out + r * layer.outputs, rows[r]);
    }
}

}  // namespace
