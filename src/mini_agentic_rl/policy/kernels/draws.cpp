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
    const number* logits;     // [., vocabulary]
    int64_t row, vocabulary;  // numbers from one row to the next, and of a row
    const int64_t* rows;        // of each draw: its row,
    const float* temperatures;  // what that is divided by,
    const bool* greedy;         // whether the likeliest token is taken,
    const double* uniforms;     // its number in (0, 1),
    const int64_t* masks;       // and the row of `allowed` that it obeys, or -1
    const word* allowed;        // [., words], a bit for each token
    int64_t words;
};

// A row of logits after temperature, in buckets; what is not allowed is minus infinity.
struct Logits {
    const number* x;
    int64_t size;
    float temperature;
    const word* allowed;  // null for all

    int64_t buckets() const { return (size + BUCKET - 1) / BUCKET; }

    mask seen(int64_t first) const {
        const mask there = between(first, 0, size);
        if (!allowed || !there) return there;
        return static_cast<mask>(there & (allowed[first / 32] >> (first % 32)));
    }

    bool is_empty(int64_t bucket) const {
        if (!allowed) return false;
        word any = 0;
        for (int64_t w = bucket * (BUCKET / 32); w < std::min((bucket + 1) * (BUCKET / 32), (size + 31) / 32); ++w)
            any |= allowed[w];
        return !any;
    }

    vec at(int64_t first) const {
        const mask here = seen(first);
        const vec v = load_some(x + first, here);
        return choose(here, temperature == 1 ? v : v / set(temperature), set(NOTHING));
    }

    float one(int64_t token) const {
        const int64_t first = token / LANES * LANES;
        alignas(64) float each[LANES];
        store(each, Logits{x, size, temperature, nullptr}.at(first));
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
bool weigh(const Logits& logits, Masses& masses) {
    const int64_t buckets = logits.buckets(), padded = rounded(buckets, LANES);
    masses.tops = scratch<float>(0, padded);
    masses.factors = scratch<float>(1, padded);
    masses.sums = scratch<float>(2, padded);
    std::fill(masses.tops, masses.tops + padded, NOTHING);
    std::fill(masses.sums, masses.sums + padded, 0.0f);
    mask broken = 0;
    vec highest = set(NOTHING);
    for (int64_t bucket = 0; bucket < buckets; ++bucket) {
        if (logits.is_empty(bucket)) continue;
        constexpr int PARTS = BUCKET / LANES;
        vec v[PARTS], top = set(NOTHING);
        for (int part = 0; part < PARTS; ++part) {
            v[part] = logits.at(bucket * BUCKET + part * LANES);
            broken |= is_nan_or_plus_infinity(v[part]);
            top = larger(top, v[part]);
        }
        highest = larger(highest, top);
        const float of_bucket = largest_of(top);
        if (of_bucket == NOTHING) continue;
        vec sum = set(0);
        for (int part = 0; part < PARTS; ++part) sum = sum + exponential(v[part] - set(of_bucket));
        masses.tops[bucket] = of_bucket;
        masses.sums[bucket] = sum_of(sum);
    }
    masses.top = largest_of(highest);
    if (broken || masses.top == NOTHING) return false;
    masses.total = 0;
    for (int64_t first = 0; first < padded; first += LANES) {
        const vec factor = exponential(load(masses.tops + first) - set(masses.top));
        store(masses.factors + first, factor);
        store(masses.sums + first, load(masses.sums + first) * factor);
    }
    for (int64_t bucket = 0; bucket < buckets; ++bucket) masses.total += masses.sums[bucket];
    return true;
}

// The first of the likeliest tokens.
int64_t likeliest(const Logits& logits, const Masses& masses) {
    const int64_t bucket = std::find(masses.tops, masses.tops + logits.buckets(), masses.top) - masses.tops;
    for (int64_t first = bucket * BUCKET;; first += LANES) {
        const mask here = equal(logits.at(first), set(masses.top));
        if (here) return first + __builtin_ctz(here);
    }
}

// The token at which the cumulated mass reaches the share `u` of the whole.
int64_t reached(const Logits& logits, const Masses& masses, double u) {
    const double target = u * masses.total;
    double mass = 0;
    int64_t bucket = 0;
    // The sums are added in the order of the total, so the last of them reaches the target.
    for (; mass + masses.sums[bucket] < target; ++bucket) mass += masses.sums[bucket];
    const double missing = (target - mass) / masses.factors[bucket];
    alignas(64) float each[BUCKET];
    for (int64_t at = 0; at < BUCKET; at += LANES) {
        store(each + at, exponential(logits.at(bucket * BUCKET + at) - set(masses.tops[bucket])));
    }
    double inside = 0;
    for (int64_t at = 0; at < BUCKET; ++at) {
        inside += each[at];
        if (inside >= missing) return bucket * BUCKET + at;
    }
    // Rounding went past the end of the bucket; its likeliest token takes the place.
    return bucket * BUCKET + (std::max_element(each, each + BUCKET) - each);
}

void draw(const Drawing& in, int64_t index, int64_t* token, double* logprob) {
    const number* x = in.logits + in.rows[index] * in.row;
    Logits logits{x, in.vocabulary, in.temperatures[index], nullptr};
    Masses masses;
    *token = 0;
    *logprob = NO_NUMBER;
    if (!weigh(logits, masses)) return;
    // Of the whole distribution, whatever is allowed.
    const double normaliser = masses.top + std::log(masses.total);
    if (in.masks[index] >= 0) {
        logits.allowed = in.allowed + in.masks[index] * in.words;
        if (!weigh(logits, masses)) return;
    }
    *token = in.greedy[index] ? likeliest(logits, masses) : reached(logits, masses, in.uniforms[index]);
    *logprob = static_cast<float>(logits.one(*token) - normaliser);
}

}  // namespace

extern "C" {

void draw_tokens(const Drawing* in, int64_t count, int64_t* tokens, double* logprobs) {
#pragma omp parallel for schedule(dynamic, 1) if (count > 1)
    for (int64_t index = 0; index < count; ++index)
        draw(*in, index, tokens + index, logprobs + index);
}

}  // extern "C"
