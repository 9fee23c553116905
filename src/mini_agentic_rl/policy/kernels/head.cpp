// Softmax of a block of the vocabulary while learning; `learning.py` says what the arguments are.

#include <omp.h>

#include <limits>

#include "softmax.h"

namespace {

struct Tile {
    number* logits;  // [rows, columns], `row` numbers from one to the next; replaced by exponentials
    int64_t row, rows, columns, first_token;
    const float* scales;  // of each row
    // Sums of each row so far: see `HeadSums` in learning.py.
    float* tops;
    int64_t* top_tokens;
    float *rests, *rest_logits;
    // What this block makes of them: by how much they shrink, and the share of a top token that joins the rest.
    float *shrinks, *joins;
    int64_t* joining;
};

void add_row(const Tile& in, int64_t r) {
    number* x = in.logits + r * in.row;
    const vec scale = set(in.scales[r]), nothing = set(-std::numeric_limits<float>::infinity());
    const auto here = [&](int64_t j) { return between(j, 0, in.columns); };
    vec tops = nothing;
    for (int64_t j = 0; j < in.columns; j += LANES)
        tops = larger(tops, choose(here(j), load_some(x + j, here(j)) * scale, nothing));
    const float of_block = largest_of(tops), old = in.tops[r];
    const bool rises = of_block > old;
    int64_t place = in.columns;
    for (int64_t j = 0; rises && place == in.columns; j += LANES) {
        const mask found = here(j) & equal(load_some(x + j, here(j)) * scale, set(of_block));
        if (found) place = j + __builtin_ctz(found);
    }
    const vec top = set(rises ? of_block : old);
    vec sum = set(0), sum_logits = set(0);
    for (int64_t j = 0; j < in.columns; j += LANES) {
        // The top token is kept out of all sums.
        const mask there = here(j) & ~between(j, place, place + 1);
        const vec logits = load_some(x + j, there) * scale;
        const vec e = choose(there, exponential(logits - top), set(0));
        sum = sum + e;
        sum_logits = fma(e, logits, sum_logits);
        store_some(x + j, e, here(j));
    }
    const float shrink = std::exp(old - std::max(old, of_block));
    in.shrinks[r] = shrink;
    in.joins[r] = rises ? shrink : 0;
    in.joining[r] = in.top_tokens[r];
    in.rests[r] = in.rests[r] * shrink + sum_of(sum) + in.joins[r];
    // Before the first block the top is minus infinity, and infinity times 0 would be NaN.
    const float joined = in.joins[r] > 0 ? in.joins[r] * old : 0;
    in.rest_logits[r] = in.rest_logits[r] * shrink + sum_of(sum_logits) + joined;
    if (!rises) return;
    in.tops[r] = of_block;
    in.top_tokens[r] = in.first_token + place;
}

}  // namespace

extern "C" {

void add_tile_of_head(const Tile* in) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < in->rows; ++r) add_row(*in, r);
}

}  // extern "C"
