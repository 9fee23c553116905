// Sampling: attention over the block cache, products of a few rows, and whole decoder layers of them. `sampling.py`
// says what the arguments are.
//
// A decode step has hundreds of small pieces of work. One team of threads does them all, so that none of them waits for
// Python, and the threads wait for each other between two pieces only.

#include <omp.h>

#include "layers.h"
#include "linears.h"
#include "paged.h"

namespace {

// Layers that are given the same input.
struct Group {
    Linear* layers;
    int64_t count, inputs;
};

struct DecoderLayer {
    const number* norm;
    const number *query_norm, *key_norm;  // of each head, or null
    const number* later_norm;
    Group attention, output, gates, down;  // queries, keys and values; gate and up
};

struct Decoder {
    const DecoderLayer* layers;
    int64_t count;
    const number* last_norm;
    int64_t width, inner;  // numbers of a state, and of what comes out of gate and up
    float epsilon;
    int64_t cache_layer;  // numbers of a layer of the cache
};

// What a step computes with, shared by all threads.
struct Buffers {
    number *states, *queries, *keys, *values, *attended, *gate, *up;
    word* low;

    Buffers(const Decoder& in, const Heads& heads, int64_t rows) {
        const int64_t of_queries = heads.query * heads.size, of_keys = heads.key * heads.size;
        number* next = scratch<number>(6, rows * (in.width + 2 * of_queries + 2 * of_keys + 2 * in.inner));
        for (auto [buffer, numbers] : {std::pair{&states, in.width}, {&queries, of_queries}, {&keys, of_keys},
                                       {&values, of_keys}, {&attended, of_queries}, {&gate, in.inner},
                                       {&up, in.inner}}) {
            *buffer = next;
            next += rows * numbers;
        }
        int64_t room = 0;
        for (int64_t i = 0; i < in.count; ++i) {
            const DecoderLayer& layer = in.layers[i];
            for (const Group* group : {&layer.attention, &layer.output, &layer.gates, &layer.down})
                room = std::max(room, room_of_low(rows, group->layers, group->count));
            layer.attention.layers[0].out = queries;
            layer.attention.layers[1].out = keys;
            layer.attention.layers[2].out = values;
            layer.output.layers[0].out = states;
            layer.gates.layers[0].out = gate;
            layer.gates.layers[1].out = up;
            layer.down.layers[0].out = states;
        }
        low = scratch<word>(6, room);
    }
};

void multiply(const Group& group, const number* x, int64_t rows, word* low) {
    multiply(x, group.inputs, rows, group.inputs, group.layers, group.count, low);
}

// Add to each row of x, and leave its norm where what was added lay.
void add_and_norm(number* x, number* more, const number* weight, int64_t rows, int64_t size, float epsilon) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t d = r * size; d < (r + 1) * size; d += LANES)
            store(x + d, load(x + d) + load(more + d));
        norm_row(x + r * size, weight, size, epsilon, more + r * size);
    }
}

void rotate_heads(number* x, const number* norm, int64_t heads, int64_t size, float epsilon, const number* cosines,
                  const number* sines) {
    for (number* head = x; head < x + heads * size; head += size) {
        if (norm) norm_row(head, norm, size, epsilon, head);
        rotate_head(head, cosines, sines, size, head);
    }
}

}  // namespace

extern "C" {

void few_rows(const number* x, int64_t row, int64_t rows, int64_t inputs, const Linear* layers, int64_t count) {
    word* low = scratch<word>(6, room_of_low(rows, layers, count));
#pragma omp parallel
    multiply(x, row, rows, inputs, layers, count, low);
}

void paged_attention(const Paged* in, const Reads* reads, int64_t tokens, number* out) {
#pragma omp parallel
    attend(*in, *reads, tokens, out);
}

// x is the embeddings [rows, width], which are overwritten; out gets the last states.
void decoder_layers(const Decoder* in, const Paged* paged, const Reads* reads, const number* cosines,
                    const number* sines, int64_t rows, number* x, number* out) {
    const Heads heads = paged->heads;
    const Buffers b(*in, heads, rows);
    const auto strided = [&](const number* data, int64_t count) {
        return Strided{data, heads.size, count * heads.size};
    };
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; ++r)
            norm_row(x + r * in->width, in->layers[0].norm, in->width, in->epsilon, b.states + r * in->width);
        for (int64_t i = 0; i < in->count; ++i) {
            const DecoderLayer& layer = in->layers[i];
            multiply(layer.attention, b.states, rows, b.low);
#pragma omp for schedule(static)
            for (int64_t r = 0; r < rows; ++r) {
                const number *c = cosines + r * heads.size, *s = sines + r * heads.size;
                rotate_heads(b.queries + r * heads.query * heads.size, layer.query_norm, heads.query, heads.size,
                             in->epsilon, c, s);
                rotate_heads(b.keys + r * heads.key * heads.size, layer.key_norm, heads.key, heads.size, in->epsilon, c,
                             s);
            }
            Paged of_layer = *paged;
            of_layer.q = strided(b.queries, heads.query);
            of_layer.k = strided(b.keys, heads.key);
            of_layer.v = strided(b.values, heads.key);
            of_layer.keys += i * in->cache_layer;
            of_layer.values += i * in->cache_layer;
            attend(of_layer, *reads, rows, b.attended);
            multiply(layer.output, b.attended, rows, b.low);
            add_and_norm(x, b.states, layer.later_norm, rows, in->width, in->epsilon);
            multiply(layer.gates, b.states, rows, b.low);
#pragma omp for schedule(static)
            for (int64_t r = 0; r < rows; ++r)
                silu_row(b.gate + r * in->inner, b.up + r * in->inner, in->inner, b.gate + r * in->inner);
            multiply(layer.down, b.gate, rows, b.low);
            const number* next = i + 1 < in->count ? in->layers[i + 1].norm : in->last_norm;
            add_and_norm(x, b.states, next, rows, in->width, in->epsilon);
        }
    }
    std::memcpy(out, b.states, rows * in->width * sizeof(number));
}

}  // extern "C"
