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

    void copy(const Strided& x, int64_t first, int64_t some, bf16* out) const {
        for (int64_t r = 0; r < some; ++r)
            std::memcpy(out + r * in.heads.size, x.at(query_head(first + r), token(first + r)),
                        in.heads.size * sizeof(bf16));
    }

    // Weights of some rows over all keys of the block, normalised, in place of their scores.
    void weigh(const bf16* q, const pair* keys, int64_t ld, int64_t first, int64_t some, float* scores) const {
        product(some, ld, in.heads.size / 2, q, in.heads.size, keys, ld, scores, ld, false);
        const int64_t n = block.keys();
        for (int64_t r = 0; r < some; ++r) {
            const int64_t row = token(first + r);
            const int64_t own = block.first_own - block.context;  // from a key's place to its token
            const auto seen = [&](int64_t j) -> __mmask16 {
                const __mmask16 of_context = between(j, 0, block.context);
                if (of_context == 0xffff) return of_context;
                const __mmask16 before = between(j, block.context, std::min(n, row + 1 - own));
                const __m512i end = _mm512_maskz_loadu_epi32(before, in.end + own + j);
                const __m512i here = _mm512_set1_epi32(static_cast<int>(row));
                return of_context | _mm512_mask_cmpgt_epi32_mask(before, end, here);
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

void forward_block(const Trees& in, const Block& block, int64_t head, bf16* out) {
    const int64_t size = in.heads.size, n = block.keys(), ld = rounded(n, LANES);
    const BlockRows rows{in, block, head, block.last_row - block.first_row};
    pair* keys = scratch<pair>(1, size / 2 * ld);
    pair* values = scratch<pair>(2, (n + 1) / 2 * size);
    pack_seen(in.ck, in.k, block, head, [&](const bf16* x, auto at) { pack_transposed(x, at, n, size, keys, ld); });
    pack_seen(in.cv, in.v, block, head, [&](const bf16* x, auto at) { pack_rows(x, at, n, size, values); });
    bf16* q = scratch<bf16>(0, ROWS * size);
    float* scores = scratch<float>(3, ROWS * ld);
    bf16* weights = scratch<bf16>(4, ROWS * ld);
    float* sums = scratch<float>(5, ROWS * size);
    for (int64_t first = 0; first < rows.count(); first += ROWS) {
        const int64_t some = std::min(ROWS, rows.count() - first);
        rows.copy(in.q, first, some, q);
        rows.weigh(q, keys, ld, first, some, scores);
        round_rows(scores, ld, some, ld, weights, nullptr);
        product(some, size, (n + 1) / 2, weights, ld, values, size, sums, size, false);
        for (int64_t r = 0; r < some; ++r) {
            bf16* to = out + (rows.token(first + r) * in.heads.query + rows.query_head(first + r)) * size;
            for (int64_t d = 0; d < size; d += LANES)
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + d), to_bf16(_mm512_loadu_ps(sums + r * size + d)));
        }
    }
}

// Gradients that one thread gathers: of keys and of values, [key heads, size, context + tokens], transposed.
struct Gathered {
    float *keys, *values;
};

void backward_block(const Trees& in, const Block& block, int64_t head, const Strided& grad, bf16* grad_q,
                    const Gathered& gathered) {
    const int64_t size = in.heads.size, n = block.keys(), ld = rounded(n, LANES), half = (n + 1) / 2;
    const int64_t all = in.context + in.tokens;
    const BlockRows rows{in, block, head, block.last_row - block.first_row};
    pair* keys = scratch<pair>(1, size / 2 * ld);
    pair* values = scratch<pair>(2, size / 2 * ld);
    pair* key_rows = scratch<pair>(6, half * size);
    pack_seen(in.ck, in.k, block, head, [&](const bf16* x, auto at) {
        pack_transposed(x, at, n, size, keys, ld);
        pack_rows(x, at, n, size, key_rows);
    });
    pack_seen(in.cv, in.v, block, head, [&](const bf16* x, auto at) { pack_transposed(x, at, n, size, values, ld); });
    bf16* q = scratch<bf16>(0, ROWS * size);
    bf16* g = scratch<bf16>(7, ROWS * size);
    bf16* transposed = scratch<bf16>(8, size * ROWS);
    float* weights = scratch<float>(3, ROWS * ld);
    float* of_weights = scratch<float>(9, ROWS * ld);
    bf16* rounded_scores = scratch<bf16>(4, ROWS * ld);
    pair* as_b = scratch<pair>(10, ROWS / 2 * ld);
    float* sums = scratch<float>(5, ROWS * size);
    float* of_keys = scratch<float>(11, 2 * size * ld);
    float* of_values = of_keys + size * ld;
    for (int64_t first = 0; first < rows.count(); first += ROWS) {
        const int64_t some = std::min(ROWS, rows.count() - first), pairs = (some + 1) / 2;
        rows.copy(in.q, first, some, q);
        rows.copy(grad, first, some, g);
        rows.weigh(q, keys, ld, first, some, weights);
        product(some, ld, size / 2, g, size, values, ld, of_weights, ld, false);
        const auto row_of = [size](int64_t r) { return r * size; };
        round_rows(weights, ld, some, ld, nullptr, as_b);
        transpose(g, row_of, some, size, transposed, ROWS);
        product(size, ld, pairs, transposed, ROWS, as_b, ld, of_values, ld, first > 0);
        // Of the scores: a weight times what its own gradient has above the row's mean. In float32, because where a
        // weight is near 1 that difference is lost in 16 bits.
        for (int64_t r = 0; r < some; ++r) {
            const float* w = weights + r * ld;
            float* s = of_weights + r * ld;
            __m512 sum = _mm512_setzero_ps();
            for (int64_t j = 0; j < ld; j += LANES)
                sum = _mm512_fmadd_ps(_mm512_loadu_ps(w + j), _mm512_loadu_ps(s + j), sum);
            const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum));
            for (int64_t j = 0; j < ld; j += LANES)
                _mm512_storeu_ps(s + j, _mm512_mul_ps(_mm512_loadu_ps(w + j),
                                                      _mm512_sub_ps(_mm512_loadu_ps(s + j), mean)));
        }
        round_rows(of_weights, ld, some, ld, rounded_scores, as_b);
        product(some, size, half, rounded_scores, ld, key_rows, size, sums, size, false);
        for (int64_t r = 0; r < some; ++r) {
            bf16* to = grad_q + (rows.token(first + r) * in.heads.query + rows.query_head(first + r)) * size;
            scale_row(sums + r * size, size, in.scale);
            for (int64_t d = 0; d < size; d += LANES)
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + d), to_bf16(_mm512_loadu_ps(sums + r * size + d)));
        }
        transpose(q, row_of, some, size, transposed, ROWS);
        product(size, ld, pairs, transposed, ROWS, as_b, ld, of_keys, ld, first > 0);
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

// Add up what the threads have gathered for 16 places of a head, and turn it back: out holds a row of `size` for each.
void add_up(const float* work, int64_t threads, int64_t apart, int64_t size, int64_t all, int64_t places, bf16* out) {
    const __mmask16 here = between(0, 0, places);
    for (int64_t d = 0; d < size; d += LANES) {
        __m512i r[LANES];
        for (int lane = 0; lane < LANES; ++lane) {
            __m512 sum = _mm512_setzero_ps();
            for (int64_t t = 0; t < threads; ++t)
                sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(here, work + t * apart + (d + lane) * all));
            r[lane] = _mm512_castps_si512(sum);
        }
        turn(r);
        for (int64_t place = 0; place < places; ++place) store(out + place * size + d, _mm512_castsi512_ps(r[place]));
    }
}

}  // namespace

extern "C" {

void tree_forward(const Trees* in, bf16* out) {
    const int64_t jobs = in->count * in->heads.key;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t job = 0; job < jobs; ++job)
        forward_block(*in, in->blocks[job / in->heads.key], job % in->heads.key, out);
}

// `work` holds 2 x threads x key heads x size x (context + tokens) zeros. Gradients of keys and values are dense:
// [key heads, tokens, size] of the chunk's own, [key heads, context, size] of the context's.
void tree_backward(const Trees* in, const Strided* grad, float* work, int64_t threads, bf16* grad_q, bf16* grad_k,
                   bf16* grad_v, bf16* grad_ck, bf16* grad_cv) {
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
        // Runs of 16 places of the context, and of the chunk's own.
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
