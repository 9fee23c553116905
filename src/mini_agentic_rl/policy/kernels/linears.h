// Products of a few rows with the weights of linear layers as they lie, and their adapters; `sampling.py` says what the
// arguments are.
//
// OUTPUTS outputs of a layer are computed for all rows at a time, so that each weight is read from memory once. The
// next weights are prefetched meanwhile. linears_bf16.h and linears_float32.h have the product of each type.

#pragma once

#include "softmax.h"

namespace {

constexpr int64_t TOGETHER = 8;  // times OUTPUTS outputs are handed to a thread at once

struct Linear {
    const number* weight;  // [outputs, inputs]
    int64_t outputs;       // a multiple of OUTPUTS
    const number* bias;    // or null
    const number* a;       // [PER_WORD ranks, inputs], or null
    const word* b;         // the scale included; in an order that differs
    int64_t ranks;         // the rank in words
    number* out;           // [rows, outputs]
};

}  // namespace

#ifdef __AVX512BF16__
#include "linears_bf16.h"
#else
#include "linears_float32.h"
#endif

namespace {

// Words that `multiply` needs for the low ranks of the layers.
int64_t room_of_low(int64_t rows, const Linear* layers, int64_t count) {
    int64_t ranks = 0;
    for (int64_t i = 0; i < count; ++i) ranks += layers[i].ranks;
    return (rows + 3) / 4 * LANES * ranks;
}

// The outputs of layers that are given the same input, by all threads of a team together. x is [rows, inputs], each row
// `row` numbers behind the one before; `inputs` is a multiple of 32.
void multiply(const number* x, int64_t row, int64_t rows, int64_t inputs, const Linear* layers, int64_t count,
              word* low) {
    const Input input(x, row, rows, inputs);
    int64_t ranks = 0, jobs = 0;
    for (int64_t i = 0; i < count; ++i) {
        ranks += layers[i].ranks;
        jobs += layers[i].outputs / OUTPUTS;
    }
    const int64_t low_rows = ranks * input.low_words();  // words from one group of rows to the next
    if (ranks) {
#pragma omp for schedule(static)
        for (int64_t job = 0; job < input.groups() * count; ++job) {
            word* to = low + job / count * low_rows;
            for (int64_t i = 0; i < job % count; ++i) to += layers[i].ranks * input.low_words();
            lower(layers[job % count], input, job / count, to);
        }
    }
#pragma omp for schedule(dynamic, TOGETHER)
    for (int64_t job = 0; job < jobs; ++job) {
        int64_t i = 0, place = job, before = 0;
        for (; place >= layers[i].outputs / OUTPUTS; ++i) {
            place -= layers[i].outputs / OUTPUTS;
            before += layers[i].ranks * input.low_words();
        }
        outputs_of(layers[i], input, place, low + before, low_rows);
    }
}

}  // namespace
