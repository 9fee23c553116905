// Attention of sampling over the block cache; `sampling.py` says what the arguments are.

#pragma once

#include "softmax.h"

namespace {

constexpr int64_t KEYS = 512;  // keys of the cache that are packed together

// Rows that read the same slots: the first of them holds position `position`, and results go to parts from `first_part`
// on, one for each row.
struct Item {
    int64_t first_row, last_row, first_slot, keys, position, first_part;
};

struct Paged {
    Strided q, k, v;       // of the packed rows
    number *keys, *values;  // the cache
    int64_t slot_width;
    const int64_t *new_slots, *sources;  // where new keys go, and the row that each is taken from; null is their order
    int64_t new_count;
    const int64_t *slots, *lengths;
    float scale, softcap;
    int64_t window;
    Heads heads;
    float *sums, *tops, *outs;  // of each part: of the exponentials, of the scores, and of the weighted values
};

// Put the keys and values of new tokens into their slots.
void write_slot(const Paged& in, int64_t index) {
    const int64_t size = in.heads.size, row = in.sources ? in.sources[index] : index;
    for (int64_t head = 0; head < in.heads.key; ++head) {
        const int64_t to = in.new_slots[index] * in.slot_width + head * size;
        std::memcpy(in.keys + to, in.k.at(head, row), size * sizeof(number));
        std::memcpy(in.values + to, in.v.at(head, row), size * sizeof(number));
    }
}

// Attention of an item's rows over its keys, for one key head: unnormalised, beside top and sum of its softmax.
void attend_item(const Paged& in, const Item& item, int64_t head) {
    const int64_t groups = in.heads.groups(), size = in.heads.size;
    const int64_t rows = (item.last_row - item.first_row) * groups;
    number* q = scratch<number>(0, rows * size);
    for (int64_t r = 0; r < rows; ++r)
        std::memcpy(q + r * size, in.q.at(head * groups + r % groups, item.first_row + r / groups),
                    size * sizeof(number));
    // Parts are stored row by row, and within a row head by head, as the rows of q are.
    const auto part = [&](int64_t r) {
        return (item.first_part + r / groups) * in.heads.query + head * groups + r % groups;
    };
    for (int64_t r = 0; r < rows; ++r) {
        in.tops[part(r)] = HIDDEN;
        in.sums[part(r)] = 0;
        std::memset(in.outs + part(r) * size, 0, size * sizeof(float));
    }
    word* keys = scratch<word>(1, KEYS * size / PER_WORD);
    word* values = scratch<word>(2, KEYS * size / PER_WORD);
    float* scores = scratch<float>(3, ROWS * KEYS);
    number* weights = scratch<number>(4, ROWS * KEYS);
    float* fresh = scratch<float>(5, ROWS * size);
    for (int64_t start = 0; start < item.keys; start += KEYS) {
        const int64_t n = std::min(KEYS, item.keys - start), ld = rounded(n, LANES);
        const int64_t* slots = in.slots + item.first_slot + start;
        const auto at = [&](int64_t i) { return slots[i] * in.slot_width + head * size; };
        // Values come from memory while keys are packed.
        for (int64_t i = 0; i < n; ++i) fetch(in.values + at(i), size);
        pack_transposed(in.keys, at, n, size, keys, ld);
        pack_rows(in.values, at, n, size, values);
        for (int64_t first = 0; first < rows; first += ROWS) {
            const int64_t some = std::min(ROWS, rows - first);
            product(some, ld, size / PER_WORD, q + first * size, size, keys, ld, scores, ld, false);
            for (int64_t r = 0; r < some; ++r) {
                const int64_t p = part(first + r), end = in.lengths[item.first_row + (first + r) / groups];
                // Positions that this row sees, counted from the first key here.
                const int64_t high = std::min(end - item.position - start, n);
                const int64_t low = in.window > 0 ? end - in.window - item.position - start : 0;
                float* s = scores + r * ld;
                const float top = std::max(in.tops[p], finish_scores(s, ld, in.scale, in.softcap, [&](int64_t j) {
                                               return between(j, low, high);
                                           }));
                // A row that sees nothing here: hidden scores less a hidden top would be weights of 1.
                const float of_keys = top > HIDDEN ? exponentials(s, ld, top) : 0;
                if (top == HIDDEN) std::memset(s, 0, ld * sizeof(float));
                const float shrink = std::exp(in.tops[p] - top);
                in.sums[p] = in.sums[p] * shrink + of_keys;
                in.tops[p] = top;
                scale_row(in.outs + p * size, size, shrink);
            }
            round_rows(scores, ld, some, ld, weights, nullptr);
            product(some, size, depth_of(n), weights, ld, values, size, fresh, size, false);
            for (int64_t r = 0; r < some; ++r) {
                float* out = in.outs + part(first + r) * size;
                for (int64_t d = 0; d < size; ++d) out[d] += fresh[r * size + d];
            }
        }
    }
}

// Items of a pass, and for each row, and behind the last one, where its parts begin in `parts`.
struct Reads {
    const Item* items;
    int64_t count;
    const int64_t *part_first, *parts;
};

// Put new keys into the cache, and give the attention [tokens, heads, size] of each row, by all threads of a team
// together.
void attend(const Paged& in, const Reads& reads, int64_t tokens, number* out) {
    const int64_t heads = in.heads.query, size = in.heads.size, jobs = reads.count * in.heads.key;
    // Before anything is read: a row sees itself, and rows of one pass may share blocks.
#pragma omp for schedule(static)
    for (int64_t index = 0; index < in.new_count; ++index) write_slot(in, index);
#pragma omp for schedule(dynamic, in.heads.key)
    for (int64_t job = 0; job < jobs; ++job) attend_item(in, reads.items[job / in.heads.key], job % in.heads.key);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < tokens; ++row)
        for (int64_t head = 0; head < heads; ++head) {
            const int64_t first = reads.part_first[row], last = reads.part_first[row + 1];
            float top = HIDDEN, sum = 0;
            for (int64_t i = first; i < last; ++i) top = std::max(top, in.tops[reads.parts[i] * heads + head]);
            alignas(64) float total[512] = {};
            for (int64_t i = first; i < last; ++i) {
                const int64_t part = reads.parts[i] * heads + head;
                const float weight = std::exp(in.tops[part] - top);
                sum += in.sums[part] * weight;
                for (int64_t d = 0; d < size; ++d) total[d] += in.outs[part * size + d] * weight;
            }
            scale_row(total, size, 1 / sum);
            number* to = out + (row * heads + head) * size;
            for (int64_t d = 0; d < size; d += LANES) store(to + d, load(total + d));
        }
}

}  // namespace
