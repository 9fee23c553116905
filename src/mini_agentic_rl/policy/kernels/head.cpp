// Softmax of a block of the vocabulary while learning; `learning.py` says what the arguments are.

#include <omp.h>

#include <limits>

#include "softmax.h"

namespace {

struct Tile {
    bf16* logits;  // [rows, columns], `row` numbers from one to the next; replaced by exponentials
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

__m512 scaled(const bf16* x, __mmask16 here, __m512 scale) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(here, x));
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)), scale);
}

void add_row(const Tile& in, int64_t r) {
    constexpr float NOTHING = -std::numeric_limits<float>::infinity();
    bf16* x = in.logits + r * in.row;
    const __m512 scale = _mm512_set1_ps(in.scales[r]), nothing = _mm512_set1_ps(NOTHING);
    const auto here = [&](int64_t j) { return between(j, 0, in.columns); };
    __m512 tops = nothing;
    for (int64_t j = 0; j < in.columns; j += LANES)
        tops = _mm512_max_ps(tops, _mm512_mask_blend_ps(here(j), nothing, scaled(x + j, here(j), scale)));
    const float of_block = _mm512_reduce_max_ps(tops), old = in.tops[r];
    const bool rises = of_block > old;
    int64_t place = in.columns;
    for (int64_t j = 0; rises && place == in.columns; j += LANES) {
        const __mmask16 found =
            _mm512_mask_cmp_ps_mask(here(j), scaled(x + j, here(j), scale), _mm512_set1_ps(of_block), _CMP_EQ_OQ);
        if (found) place = j + __builtin_ctz(found);
    }
    const __m512 top = _mm512_set1_ps(rises ? of_block : old);
    __m512 sum = _mm512_setzero_ps(), sum_logits = _mm512_setzero_ps();
    for (int64_t j = 0; j < in.columns; j += LANES) {
        // The top token is kept out of all sums.
        const __mmask16 there = here(j) & ~between(j, place, place + 1);
        const __m512 logits = scaled(x + j, there, scale);
        const __m512 e = _mm512_maskz_mov_ps(there, exponential(_mm512_sub_ps(logits, top)));
        sum = _mm512_add_ps(sum, e);
        sum_logits = _mm512_mask3_fmadd_ps(e, logits, sum_logits, there);
        _mm256_mask_storeu_epi16(x + j, here(j), to_bf16(e));
    }
    const float shrink = std::exp(old - std::max(old, of_block));
    in.shrinks[r] = shrink;
    in.joins[r] = rises ? shrink : 0;
    in.joining[r] = in.top_tokens[r];
    in.rests[r] = in.rests[r] * shrink + _mm512_reduce_add_ps(sum) + in.joins[r];
    // Before the first block the top is minus infinity, and infinity times 0 would be NaN.
    const float joined = in.joins[r] > 0 ? in.joins[r] * old : 0;
    in.rest_logits[r] = in.rest_logits[r] * shrink + _mm512_reduce_add_ps(sum_logits) + joined;
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
