// Products of a few rows with the weights of linear layers as they lie, and their adapters; `sampling.py` says what the
// arguments are.
//
// Four outputs of the layer at a time meet all rows, so that a weight comes from memory once, and what comes next is
// fetched meanwhile.

#pragma once

#include "dots.h"

namespace {

constexpr int64_t OUTPUTS = 4;   // of the layer that are computed together
constexpr int64_t TOGETHER = 8;  // times so many outputs are handed to a thread at once

struct Linear {
    const bf16* weight;  // [outputs, inputs]
    int64_t outputs;     // a multiple of 4
    const bf16* bias;    // or null
    const bf16* a;       // [2 pairs, inputs], or null
    const pair* b;       // [outputs / 4][pairs][4], the scale included
    int64_t pairs;       // a multiple of 2
    bf16* out;           // [rows, outputs]
};

// The first outputs of low rank, A x, of four rows: [pairs][4 rows][4 copies].
void lower(const Linear& layer, const bf16* x, int64_t row, int64_t rows, int64_t inputs, pair* low) {
    const __m512i even = _mm512_set_epi32(6, 6, 6, 6, 4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0);
    const __m512i odd = _mm512_set_epi32(7, 7, 7, 7, 5, 5, 5, 5, 3, 3, 3, 3, 1, 1, 1, 1);
    for (int64_t p = 0; p < layer.pairs; p += 2) {
        const __m512 found = sums_of<0>(rows, x, row, layer.a + 2 * p * inputs, inputs, nullptr);
        const __m512i both = _mm512_castsi256_si512(to_bf16(found));
        _mm512_storeu_si512(low + p * LANES, _mm512_permutexvar_epi32(even, both));
        _mm512_storeu_si512(low + (p + 1) * LANES, _mm512_permutexvar_epi32(odd, both));
    }
}

// Four outputs of all rows.
void outputs_of(const Linear& layer, const bf16* x, int64_t row, int64_t rows, int64_t inputs, int64_t number,
                const pair* low, int64_t low_rows) {
    const bf16* weight = layer.weight + number * OUTPUTS * inputs;
    const char* next = reinterpret_cast<const char*>(weight + OUTPUTS * inputs);
    // What the next outputs need is fetched meanwhile: by few rows amid their products, where the memory would be waited
    // for, by more rows between them, where each product counts.
    const int64_t bytes = OUTPUTS * inputs * sizeof(bf16), groups = (rows + 3) / 4;
    const int64_t lines = groups == 1 ? 4 : groups == 2 ? 2 : 0;
    const auto product = lines == 4 ? sums_of<4> : lines == 2 ? sums_of<2> : sums_of<0>;
    const int64_t share = rounded((bytes + groups - 1) / groups, 64);
    __m512 bias = _mm512_setzero_ps();
    if (layer.bias) {
        const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(layer.bias + number * OUTPUTS));
        bias = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_broadcast_i32x4(_mm_cvtepu16_epi32(four)), 16));
    }
    for (int64_t first = 0; first < rows; first += 4) {
        const int64_t some = std::min<int64_t>(4, rows - first);
        const int64_t at = first / 4 * share;
        if (!lines)
            for (int64_t i = at; i < std::min(at + share, bytes); i += 64) _mm_prefetch(next + i, _MM_HINT_T0);
        __m512 y = _mm512_add_ps(product(some, x + first * row, row, weight, inputs, next + at), bias);
        if (layer.pairs) {
            // Rounded before the adapter is added, as the learner rounds.
            y = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bf16(y)), 16));
            const pair* of_rows = low + first / 4 * low_rows;
            const pair* b = layer.b + number * layer.pairs * OUTPUTS;
            for (int64_t p = 0; p < layer.pairs; ++p) {
                const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + p * OUTPUTS));
                y = _mm512_dpbf16_ps(y, (__m512bh)_mm512_loadu_si512(of_rows + p * LANES),
                                     (__m512bh)_mm512_broadcast_i32x4(four));
            }
        }
        alignas(32) std::uint64_t each[4];
        _mm256_store_si256(reinterpret_cast<__m256i*>(each), to_bf16(y));
        for (int64_t r = 0; r < some; ++r)
            std::memcpy(layer.out + (first + r) * layer.outputs + number * OUTPUTS, each + r, sizeof each[r]);
    }
}

// Room that `multiply` needs for the low ranks of the layers.
int64_t room_of_low(int64_t rows, const Linear* layers, int64_t count) {
    int64_t pairs = 0;
    for (int64_t i = 0; i < count; ++i) pairs += layers[i].pairs;
    return (rows + 3) / 4 * pairs * LANES;
}

// The outputs of layers that are given the same input, by all threads of a team together. x is [rows, inputs], each row
// `row` numbers behind the one before; `inputs` is a multiple of 32.
void multiply(const bf16* x, int64_t row, int64_t rows, int64_t inputs, const Linear* layers, int64_t count, pair* low) {
    int64_t pairs = 0, jobs = 0;
    for (int64_t i = 0; i < count; ++i) {
        pairs += layers[i].pairs;
        jobs += layers[i].outputs / OUTPUTS;
    }
    const int64_t groups = (rows + 3) / 4, low_rows = pairs * LANES;
    if (pairs) {
#pragma omp for schedule(static)
        for (int64_t job = 0; job < groups * count; ++job) {
            const int64_t group = job / count, some = std::min<int64_t>(4, rows - group * 4);
            pair* to = low + group * low_rows;
            for (int64_t i = 0; i < job % count; ++i) to += layers[i].pairs * LANES;
            lower(layers[job % count], x + group * 4 * row, row, some, inputs, to);
        }
    }
#pragma omp for schedule(dynamic, TOGETHER)
    for (int64_t job = 0; job < jobs; ++job) {
        int64_t i = 0, number = job, before = 0;
        for (; number >= layers[i].outputs / OUTPUTS; ++i) {
            number -= layers[i].outputs / OUTPUTS;
            before += layers[i].pairs * LANES;
        }
        outputs_of(layers[i], x, row, rows, inputs, number, low + before, low_rows);
    }
}

}  // namespace
