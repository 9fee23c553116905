// Draws from rows of logits, each in one pass over the vocabulary; `sampling.py` says what the arguments are.

#include <omp.h>

#include <limits>

#include "softmax.h"

namespace {

// Tokens whose probabilities are summed in float32; sums of several are doubles. The sampler's torch code has the same.
constexpr int64_t BUCKET = 128;
constexpr float NOTHING = -std::numeric_limits<float>::infinity();
constexpr double NO_NUMBER = std::numeric_limits<double>::quiet_NaN();

struct Drawing {
    const void* logits;      // [., vocabulary], float32 where `wide`, bfloat16 elsewhere
    int64_t row, vocabulary;  // numbers from one row to the next, and of a row
    bool wide;
    const int64_t* rows;        // of each draw: its row,
    const float* temperatures;  // what that is divided by,
    const bool* greedy;         // whether the likeliest token is taken,
    const double* uniforms;     // its number in (0, 1),
    const int64_t* masks;       // and the row of `allowed` that it obeys, or -1
    const pair* allowed;        // [., words], a bit for each token
    int64_t words;
};

__m512 read(const float* x, __mmask16 here) { return _mm512_mask_loadu_ps(_mm512_set1_ps(NOTHING), here, x); }

__m512 read(const bf16* x, __mmask16 here) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(here, x));
    return _mm512_mask_blend_ps(here, _mm512_set1_ps(NOTHING), _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
}

// A row of logits after temperature, in buckets; what is not allowed is minus infinity.
template <typename T>
struct Logits {
    const T* x;
    int64_t size;
    float temperature;
    const pair* allowed;  // null for all

    int64_t buckets() const { return (size + BUCKET - 1) / BUCKET; }

    __mmask16 seen(int64_t first) const {
        const __mmask16 there = first + LANES <= size ? 0xffff : between(first, 0, size);
        if (!allowed || !there) return there;
        return static_cast<__mmask16>(there & (allowed[first / 32] >> (first % 32)));
    }

    bool is_empty(int64_t bucket) const {
        if (!allowed) return false;
        pair any = 0;
        for (int64_t w = bucket * (BUCKET / 32); w < std::min((bucket + 1) * (BUCKET / 32), (size + 31) / 32); ++w)
            any |= allowed[w];
        return !any;
    }

    __m512 at(int64_t first) const {
        const __mmask16 here = seen(first);
        const __m512 v = read(x + first, here);
        return temperature == 1 ? v : _mm512_mask_div_ps(v, here, v, _mm512_set1_ps(temperature));
    }

    float one(int64_t token) const {
        const int64_t first = token / LANES * LANES;
        alignas(64) float each[LANES];
        _mm512_store_ps(each, Logits{x, size, temperature, nullptr}.at(first));
        return each[token - first];
    }
};

// The exponentials of a row: of each bucket its largest logit and its sum, in proportion to the row's largest logit.
struct Masses {
    float *tops, *factors, *sums;  // factors: by how much a bucket's largest token is less likely than the row's
    float top;
    double total;
};

// Returns false where a logit is infinite or no number, or all are minus infinity.
template <typename T>
bool weigh(const Logits<T>& logits, Masses& masses) {
    const int64_t buckets = logits.buckets(), padded = rounded(buckets, LANES);
    masses.tops = scratch<float>(0, padded);
    masses.factors = scratch<float>(1, padded);
    masses.sums = scratch<float>(2, padded);
    std::fill(masses.tops, masses.tops + padded, NOTHING);
    std::fill(masses.sums, masses.sums + padded, 0.0f);
    __mmask16 broken = 0;
    __m512 highest = _mm512_set1_ps(NOTHING);
    for (int64_t bucket = 0; bucket < buckets; ++bucket) {
        if (logits.is_empty(bucket)) continue;
        constexpr int PARTS = BUCKET / LANES;
        __m512 v[PARTS], top = _mm512_set1_ps(NOTHING);
        for (int part = 0; part < PARTS; ++part) {
            v[part] = logits.at(bucket * BUCKET + part * LANES);
            broken |= _mm512_fpclass_ps_mask(v[part], 0x01 | 0x08 | 0x80);  // no number, plus infinity
            top = _mm512_max_ps(top, v[part]);
        }
        highest = _mm512_max_ps(highest, top);
        const float of_bucket = _mm512_reduce_max_ps(top);
        if (of_bucket == NOTHING) continue;
        __m512 sum = _mm512_setzero_ps();
        for (int part = 0; part < PARTS; ++part)
            sum = _mm512_add_ps(sum, exponential(_mm512_sub_ps(v[part], _mm512_set1_ps(of_bucket))));
        masses.tops[bucket] = of_bucket;
        masses.sums[bucket] = _mm512_reduce_add_ps(sum);
    }
    masses.top = _mm512_reduce_max_ps(highest);
    if (broken || masses.top == NOTHING) return false;
    masses.total = 0;
    for (int64_t first = 0; first < padded; first += LANES) {
        const __m512 tops = _mm512_loadu_ps(masses.tops + first);
        const __m512 factor = exponential(_mm512_sub_ps(tops, _mm512_set1_ps(masses.top)));
        _mm512_storeu_ps(masses.factors + first, factor);
        _mm512_storeu_ps(masses.sums + first, _mm512_mul_ps(_mm512_loadu_ps(masses.sums + first), factor));
    }
    for (int64_t bucket = 0; bucket < buckets; ++bucket) masses.total += masses.sums[bucket];
    return true;
}

// The first of the likeliest tokens.
template <typename T>
int64_t likeliest(const Logits<T>& logits, const Masses& masses) {
    const int64_t bucket = std::find(masses.tops, masses.tops + logits.buckets(), masses.top) - masses.tops;
    for (int64_t first = bucket * BUCKET;; first += LANES) {
        const __mmask16 here = _mm512_cmp_ps_mask(logits.at(first), _mm512_set1_ps(masses.top), _CMP_EQ_OQ);
        if (here) return first + __builtin_ctz(here);
    }
}

// The token at which the cumulated mass reaches the share `u` of the whole.
template <typename T>
int64_t reached(const Logits<T>& logits, const Masses& masses, double u) {
    const double target = u * masses.total;
    double mass = 0;
    int64_t bucket = 0;
    // The sums are added in the order of the total, so the last of them reaches the target.
    for (; mass + masses.sums[bucket] < target; ++bucket) mass += masses.sums[bucket];
    const double missing = (target - mass) / masses.factors[bucket];
    alignas(64) float each[BUCKET];
    for (int64_t at = 0; at < BUCKET; at += LANES) {
        const __m512 v = _mm512_sub_ps(logits.at(bucket * BUCKET + at), _mm512_set1_ps(masses.tops[bucket]));
        _mm512_store_ps(each + at, exponential(v));
    }
    double inside = 0;
    for (int64_t at = 0; at < BUCKET; ++at) {
        inside += each[at];
        if (inside >= missing) return bucket * BUCKET + at;
    }
    // Rounding went past the end of the bucket; its likeliest token takes the place.
    return bucket * BUCKET + (std::max_element(each, each + BUCKET) - each);
}

template <typename T>
void draw(const Drawing& in, int64_t number, int64_t* token, double* logprob) {
    const T* x = static_cast<const T*>(in.logits) + in.rows[number] * in.row;
    Logits<T> logits{x, in.vocabulary, in.temperatures[number], nullptr};
    Masses masses;
    *token = 0;
    *logprob = NO_NUMBER;
    if (!weigh(logits, masses)) return;
    // Of the whole distribution, whatever is allowed.
    const double normaliser = masses.top + std::log(masses.total);
    if (in.masks[number] >= 0) {
        logits.allowed = in.allowed + in.masks[number] * in.words;
        if (!weigh(logits, masses)) return;
    }
    *token = in.greedy[number] ? likeliest(logits, masses) : reached(logits, masses, in.uniforms[number]);
    *logprob = static_cast<float>(logits.one(*token) - normaliser);
}

}  // namespace

extern "C" {

void draw_tokens(const Drawing* in, int64_t count, int64_t* tokens, double* logprobs) {
#pragma omp parallel for schedule(dynamic, 1) if (count > 1)
    for (int64_t number = 0; number < count; ++number)
        in->wide ? draw<float>(*in, number, tokens + number, logprobs + number)
                 : draw<bf16>(*in, number, tokens + number, logprobs + number);
}

}  // extern "C"
