// Attention of learning inside packed trees, forward and backward; `learning.py` says what the arguments are.

#include <omp.h>

#include "softmax.h"

namespace {

// Rows of a chunk that look at some of its own tokens, and at the first `context` ones of the path above it.
struct Block {
    int64_t first_row, last_row, first_own, last_own, context;
    int64_t keys() const { return context + last_own - first_own; }
};

struct Trees {
    Strided q, k, v, ck, cv;
    const Block* blocks;
    int64_t count, tokens, context;
    const int* end;  // of each token: the first one behind it that does not see it
    float scale;
    Heads heads;
};

// The rows of a block under one key head: all of its tokens for the first query head, then for the next ones.
struct BlockRows {
    const Trees& in;
    const Block& block;
    int64_t head, tokens;
    int64_t count() const { return tokens * in.heads.groups(); }
    int64_t token(int64_t r) const { return block.first_row + r % tokens; }
    int64_t query_head(int64_t r) const { return head * in.heads.groups() + r / tokens; }

    void copy(const Strided& x, int64_t first, int64_t some, number* out) const {
        for (int64_t r = 0; r < some; ++r)
            std::memcpy(out + r * in.heads.size, x.at(query_head(first + r), token(first + r)),
                        in.heads.size * sizeof(number));
    }

    // Weights of some rows over all keys of the block, normalised, in place of their scores.
    void weigh(const number* q, const word* keys, int64_t ld, int64_t first, int64_t some, float* scores) const {
        product(some, ld, in.heads.size / PER_WORD, q, in.heads.size, keys, ld, scores, ld, false);
        const int64_t n = block.keys();
        for (int64_t r = 0; r < some; ++r) {
            const int64_t row = token(first + r);
            const int64_t own = block.first_own - block.context;  // from a key's place to its token
            const auto seen = [&](int64_t j) -> mask {
                const mask of_context = between(j, 0, block.context);
                if (of_context == ALL) return of_context;
                const mask before = between(j, block.context, std::min(n, row + 1 - own));
                return of_context | greater(in.end + own + j, static_cast<int>(row), before);
            };
            float* s = scores + r * ld;
            const float top = finish_scores(s, ld, in.scale, 0, seen);
            scale_row(s, ld, 1 / exponentials(s, ld, top));
        }
    }
};

// Pack the keys or values that a block looks at: those of the context, then its own.
template <typename Pack>
void pack_seen(const Strided& context, const Strided& own, const Block& block, int64_t head, Pack pack) {
    // One address for both: they are told apart by what is added to the first one's.
    const auto at = [&](int64_t i) -> int64_t {
        if (i < block.context) return head * context.head + i * context.token;
        return own.at(head, block.first_own + i - block.context) - context.data;
    };
    pack(context.data, at);
}

void forward_block(const Trees& in, const Block& block, int64_t head, number* out) {
    const int64_t size = in.heads.size, n = block.keys(), ld = rounded(n, LANES);
    const BlockRows rows{in, block, head, block.last_row - block.first_row};
    word* keys = scratch<word>(1, size / PER_WORD * ld);
    word* values = scratch<word>(2, depth_of(n) * size);
    pack_seen(in.ck, in.k, block, head, [&](const number* x, auto at) { pack_transposed(x, at, n, size, keys, ld); });
    pack_seen(in.cv, in.v, block, head, [&](const number* x, auto at) { pack_rows(x, at, n, size, values); });
    number* q = scratch<number>(0, ROWS * size);
    float* scores = scratch<float>(3, ROWS * ld);
    number* weights = scratch<number>(4, ROWS * ld);
    float* sums = scratch<float>(5, ROWS * size);
    for (int64_t first = 0; first < rows.count(); first += ROWS) {
        const int64_t some = std::min(ROWS, rows.count() - first);
        rows.copy(in.q, first, some, q);
        rows.weigh(q, keys, ld, first, some, scores);
        round_rows(scores, ld, some, ld, weights, nullptr);
        product(some, size, depth_of(n), weights, ld, values, size, sums, size, false);
        for (int64_t r = 0; r < some; ++r) {
            number* to = out + (rows.token(first + r) * in.heads.query + rows.query_head(first + r)) * size;
            for (int64_t d = 0; d < size; d += LANES) store(to + d, load(sums + r * size + d));
        }
    }
}

// Gradients that one thread gathers: of keys and of values, [key heads, size, context + tokens], transposed.
struct Gathered {
    float *keys, *values;
};

void backward_block(const Trees& in, const Block& block, int64_t head, const Strided& grad, number* grad_q,
                    const Gathered& gathered) {
    const int64_t size = in.heads.size, n = block.keys(), ld = rounded(n, LANES), key_words = depth_of(n);
    const int64_t all = in.context + in.tokens;
    const BlockRows rows{in, block, head, block.last_row - block.first_row};
    word* keys = scratch<word>(1, size / PER_WORD * ld);
    word* values = scratch<word>(2, size / PER_WORD * ld);
    word* key_rows = scratch<word>(6, key_words * size);
    pack_seen(in.ck, in.k, block, head, [&](const number* x, auto at) {
        pack_transposed(x, at, n, size, keys, ld);
        pack_rows(x, at, n, size, key_rows);
    });
    pack_seen(in.cv, in.v, block, head, [&](const number* x, auto at) { pack_transposed(x, at, n, size, values, ld); });
    number* q = scratch<number>(0, ROWS * size);
    number* g = scratch<number>(7, ROWS * size);
    number* transposed = scratch<number>(8, size * ROWS);
    float* weights = scratch<float>(3, ROWS * ld);
    float* of_weights = scratch<float>(9, ROWS * ld);
    number* rounded_scores = scratch<number>(4, ROWS * ld);
    word* as_b = scratch<word>(10, ROWS / PER_WORD * ld);
    float* sums = scratch<float>(5, ROWS * size);
    float* of_keys = scratch<float>(11, 2 * size * ld);
    float* of_values = of_keys + size * ld;
    for (int64_t first = 0; first < rows.count(); first += ROWS) {
        const int64_t some = std::min(ROWS, rows.count() - first), some_words = depth_of(some);
        rows.copy(in.q, first, some, q);
        rows.copy(grad, first, some, g);
        rows.weigh(q, keys, ld, first, some, weights);
        product(some, ld, size / PER_WORD, g, size, values, ld, of_weights, ld, false);
        const auto row_of = [size](int64_t r) { return r * size; };
        round_rows(weights, ld, some, ld, nullptr, as_b);
        transpose(g, row_of, some, size, transposed, ROWS);
        product(size, ld, some_words, transposed, ROWS, as_b, ld, of_values, ld, first > 0);
        // Of the scores: a weight times what its own gradient has above the row's mean. In float32, because where a
        // weight is near 1 that difference is lost in 16 bits.
        for (int64_t r = 0; r < some; ++r) {
            const float* w = weights + r * ld;
            float* s = of_weights + r * ld;
            vec sum = set(0);
            for (int64_t j = 0; j < ld; j += LANES) sum = fma(load(w + j), load(s + j), sum);
            const vec mean = set(sum_of(sum));
            for (int64_t j = 0; j < ld; j += LANES) store(s + j, load(w + j) * (load(s + j) - mean));
        }
        round_rows(of_weights, ld, some, ld, rounded_scores, as_b);
        product(some, size, key_words, rounded_scores, ld, key_rows, size, sums, size, false);
        for (int64_t r = 0; r < some; ++r) {
            number* to = grad_q + (rows.token(first + r) * in.heads.query + rows.query_head(first + r)) * size;
            scale_row(sums + r * size, size, in.scale);
            for (int64_t d = 0; d < size; d += LANES) store(to + d, load(sums + r * size + d));
        }
        transpose(q, row_of, some, size, transposed, ROWS);
        product(size, ld, some_words, transposed, ROWS, as_b, ld, of_keys, ld, first > 0);
    }
    for (int64_t d = 0; d < size; ++d) {
        const int64_t row = (head * size + d) * all, own = in.context + block.first_own;
        const auto gather = [&](float* to, const float* from, float scale) {
            for (int64_t j = 0; j < block.context; ++j) to[j] += from[j] * scale;
            for (int64_t j = block.context; j < n; ++j) to[own + j - block.context] += from[j] * scale;
        };
        gather(gathered.keys + row, of_keys + d * ld, in.scale);
        gather(gathered.values + row, of_values + d * ld, 1);
    }
}

// Add up what the threads have gathered for LANES places of a head, and turn it back: out holds a row of `size` for
// each.
void add_up(const float* work, int64_t threads, int64_t apart, int64_t size, int64_t all, int64_t places, number* out) {
    const mask here = between(0, 0, places);
    for (int64_t d = 0; d < size; d += LANES) {
        words r[LANES];
        for (int lane = 0; lane < LANES; ++lane) {
            vec sum = set(0);
            for (int64_t t = 0; t < threads; ++t) sum = sum + load_some(work + t * apart + (d + lane) * all, here);
            r[lane] = as_words(sum);
        }
        turn(r);
        for (int64_t place = 0; place < places; ++place) store(out + place * size + d, as_vec(r[place]));
    }
}

}  // namespace

extern "C" {

void tree_forward(const Trees* in, number* out) {
    const int64_t jobs = in->count * in->heads.key;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t job = 0; job < jobs; ++job)
        forward_block(*in, in->blocks[job / in->heads.key], job % in->heads.key, out);
}

// `work` holds 2 x threads x key heads x size x (context + tokens) zeros. Gradients of keys and values are dense:
// [key heads, tokens, size] of the chunk's own, [key heads, context, size] of the context's.
void tree_backward(const Trees* in, const Strided* grad, float* work, int64_t threads, number* grad_q, number* grad_k,
                   number* grad_v, number* grad_ck, number* grad_cv) {
    const int64_t key = in->heads.key, size = in->heads.size, all = in->context + in->tokens;
    const int64_t jobs = in->count * key, one = key * size * all;
#pragma omp parallel num_threads(static_cast<int>(threads))
    {
        const int64_t thread = omp_get_thread_num();
        const Gathered gathered{work + 2 * thread * one, work + (2 * thread + 1) * one};
        // Dealt out in turn: who adds what, and so how it is rounded, depends on the number of threads alone.
#pragma omp for schedule(static, 1)
        for (int64_t job = 0; job < jobs; ++job)
            backward_block(*in, in->blocks[job / key], job % key, *grad, grad_q, gathered);
        // Runs of LANES places of the context, and of the chunk's own.
        const int64_t runs = (in->context + LANES - 1) / LANES, of_head = runs + (in->tokens + LANES - 1) / LANES;
#pragma omp for schedule(static)
        for (int64_t job = 0; job < key * of_head; ++job) {
            const int64_t head = job / of_head, run = job % of_head;
            const bool own = run >= runs;
            const int64_t count = own ? in->tokens : in->context, first = (own ? run - runs : run) * LANES;
            const int64_t places = std::min(LANES, count - first), to = (head * count + first) * size;
            const float* from = work + head * size * all + (own ? in->context : 0) + first;
            add_up(from, threads, 2 * one, size, all, places, (own ? grad_k : grad_ck) + to);
            add_up(from + one, threads, 2 * one, size, all, places, (own ? grad_v : grad_cv) + to);
        }
    }
}

}  // extern "C"
