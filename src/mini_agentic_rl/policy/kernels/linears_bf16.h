// bfloat16: one instruction multiplies 16 pairs along K, of four rows and four outputs (dots.h). For eight rows this
// takes half as many instructions as rows side by side in a vector (linears_float32.h), which they would half fill.

#pragma once

#include "dots.h"

namespace {

constexpr int64_t GROUP = 4;    // rows in a product
constexpr int64_t OUTPUTS = 4;  // outputs in a product

struct Input {
    const number* x;
    int64_t row, rows, inputs;

    Input(const number* x, int64_t row, int64_t rows, int64_t inputs) : x(x), row(row), rows(rows), inputs(inputs) {}
    int64_t groups() const { return (rows + GROUP - 1) / GROUP; }
    int64_t count(int64_t group) const { return std::min(GROUP, rows - group * GROUP); }
    int64_t low_words() const { return LANES; }
};

// Outputs of low rank, A x, of the rows of a group: [ranks][4 rows][4 copies].
void lower(const Linear& layer, const Input& in, int64_t group, word* low) {
    const words even = _mm512_set_epi32(6, 6, 6, 6, 4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0);
    const words odd = _mm512_set_epi32(7, 7, 7, 7, 5, 5, 5, 5, 3, 3, 3, 3, 1, 1, 1, 1);
    for (int64_t p = 0; p < layer.ranks; p += 2) {
        const vec found = sums_of<0>(in.count(group), in.x + group * GROUP * in.row, in.row,
                                     layer.a + 2 * p * in.inputs, in.inputs, nullptr);
        const words both = _mm512_castsi256_si512(to_bf16(found));
        _mm512_storeu_si512(low + p * LANES, _mm512_permutexvar_epi32(even, both));
        _mm512_storeu_si512(low + (p + 1) * LANES, _mm512_permutexvar_epi32(odd, both));
    }
}

// Four outputs of all rows.
void outputs_of(const Linear& layer, const Input& in, int64_t place, const word* low, int64_t low_rows) {
    const number* weight = layer.weight + place * OUTPUTS * in.inputs;
    const char* next = reinterpret_cast<const char*>(weight + OUTPUTS * in.inputs);
    // Prefetch the weights of the next outputs. With few rows memory is the limit, so this is done during the products;
    // with more rows computation is the limit, so it is done between them.
    const int64_t bytes = OUTPUTS * in.inputs * sizeof(number), groups = in.groups();
    const int64_t lines = groups == 1 ? 4 : groups == 2 ? 2 : 0;
    const auto product = lines == 4 ? sums_of<4> : lines == 2 ? sums_of<2> : sums_of<0>;
    const int64_t share = rounded((bytes + groups - 1) / groups, 64);
    vec bias = set(0);
    if (layer.bias) {
        const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(layer.bias + place * OUTPUTS));
        bias = as_vec(_mm512_slli_epi32(_mm512_broadcast_i32x4(_mm_cvtepu16_epi32(four)), 16));
    }
    for (int64_t group = 0; group < groups; ++group) {
        const int64_t first = group * GROUP, some = in.count(group), at = group * share;
        if (!lines)
            for (int64_t i = at; i < std::min(at + share, bytes); i += 64) _mm_prefetch(next + i, _MM_HINT_T0);
        vec y = product(some, in.x + first * in.row, in.row, weight, in.inputs, next + at) + bias;
        if (layer.ranks) {
            // Rounded before the adapter is added, as the learner rounds.
            y = round_once(y);
            const word* of_rows = low + group * low_rows;
            const word* b = layer.b + place * layer.ranks * OUTPUTS;
            for (int64_t p = 0; p < layer.ranks; ++p) {
                const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + p * OUTPUTS));
                y = add_products(y, load_words(of_rows + p * LANES), _mm512_broadcast_i32x4(four));
            }
        }
        alignas(32) std::uint64_t each[4];
        _mm256_store_si256(reinterpret_cast<__m256i*>(each), to_bf16(y));
        for (int64_t r = 0; r < some; ++r)
            std::memcpy(layer.out + (first + r) * layer.outputs + place * OUTPUTS, each + r, sizeof each[r]);
    }
}

}  // namespace
