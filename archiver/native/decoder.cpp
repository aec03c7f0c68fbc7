// A decoder of Llama's kind for CPUs: what `model.compile: aot` compiles for the text handler.
//
// A row is a token. A step has one row for each sequence that is writing, and many for a prompt that is being read, in
// any mixture. Every row is computed by the same operations in the same order whatever is beside it, so an answer has
// the same bits alone, in a full batch, and in whatever pieces its prompt is read.
#include "attention.h"
#include "matrices.h"

namespace {

struct Layer {
    Matrix query_key_value, output, gate_up, down;
    const float *before_attention, *before_mlp, *bias, *query_norm, *key_norm;
    void *keys, *values;
};
struct Model {
    const Layer* layers;
    Matrix embedding, head;
    const float *norm, *cosines, *sines;
    int64_t count, hidden, heads, kv_heads, size, inner, context, kind, threads;
    double epsilon;
};

void normalise(const float* from, const float* weight, int64_t count, float epsilon, float* to) {
    F squares{};
    int64_t index = 0;
    for (; index + LANES <= count; index += LANES) squares += load<F>(from + index) * load<F>(from + index);
    float sum = total(squares);
    for (; index < count; index++) sum += from[index] * from[index];
    float factor = 1.0f / std::sqrt(sum / count + epsilon);
    for (index = 0; index < count; index++) to[index] = from[index] * factor * weight[index];
}

void turn(float* vector, const float* cosines, const float* sines, int64_t size) {
    for (int64_t left = 0, right = size / 2; right < size; left++, right++) {
        float first = vector[left], second = vector[right];
        vector[left] = first * cosines[left] - second * sines[left];
        vector[right] = second * cosines[right] + first * sines[right];
    }
}

struct Rows {
    const int32_t *slots, *positions;
    int64_t count;
};

constexpr int QUERIES = 6;  // how many queries with the same keys are computed together

// A part of the attention: up to QUERIES queries of one sequence and one head of keys.
struct Task {
    int64_t row, query, count, head;
};

std::vector<Task> tasks_of(const Model& model, const Rows& rows) {
    std::vector<Task> tasks;
    int64_t shared = model.heads / model.kv_heads;
    for (int64_t row = 0, end; row < rows.count; row = end) {
        for (end = row; end < rows.count && rows.slots[end] == rows.slots[row];) end++;
        for (int64_t query = 0; query < (end - row) * shared; query += QUERIES)
            for (int64_t head = 0; head < model.kv_heads; head++)
                tasks.push_back({row, query, std::min<int64_t>(QUERIES, (end - row) * shared - query), head});
    }
    return tasks;
}

struct Step {
    const Model& model;
    Rows rows;
    int64_t mixed_wide, inner_wide, padded, shared, hidden_wide;
    std::vector<float> hidden, mixed, inner;
    Inputs normed, attended, gated;
    std::vector<Task> tasks;

    Step(const Model& model, Rows rows)
        : model(model), rows(rows), mixed_wide(up((model.heads + 2 * model.kv_heads) * model.size, PANEL)),
          inner_wide(up(2 * model.inner, PANEL)), padded(up(model.size, PANEL)), shared(model.heads / model.kv_heads),
          hidden_wide(up(model.hidden, PANEL)), hidden(rows.count * hidden_wide), mixed(rows.count * mixed_wide),
          inner(rows.count * inner_wide), normed(rows.count, model.hidden, model.kind),
          attended(rows.count, model.heads * model.size, model.kind), gated(rows.count, model.inner, model.kind),
          tasks(tasks_of(model, rows)) {}

    template <class T> void embed(int64_t row, int64_t token) {
        const T* panel = (const T*)model.embedding.weights + token / PANEL * PANEL * normed.wide;
        int64_t of = token % PANEL;
        for (int64_t index = 0; index < model.hidden; index++) {
            constexpr int64_t together = 4 / sizeof(T);
            T weight = panel[index / together * together * PANEL + of * together + index % together];
            if constexpr (sizeof(T) == 1)
                hidden[row * hidden_wide + index] = (weight - OFFSET) * model.embedding.scales[token];
            else if constexpr (sizeof(T) == 2) {
                uint32_t bits = (uint32_t)weight << 16;
                memcpy(&hidden[row * hidden_wide + index], &bits, 4);
            } else
                hidden[row * hidden_wide + index] = weight;
        }
    }

    void norm_into(const float* weight, int64_t from, Inputs& to, int64_t row) {
        normalise(&hidden[from * hidden_wide], weight, model.hidden, model.epsilon, to.row(row));
        to.quantise(row);
    }

    template <class C> void place(const Layer& layer, int64_t row) {
        float* vector = &mixed[row * mixed_wide];
        int64_t at = rows.positions[row], slot = rows.slots[row], size = model.size;
        int64_t blocks = up(model.context, PANEL);
        for (int64_t head = 0; head < model.heads + model.kv_heads; head++, vector += size) {
            const float* norm = head < model.heads ? layer.query_norm : layer.key_norm;
            if (norm) normalise(vector, norm, size, model.epsilon, vector);
            turn(vector, model.cosines + at * size, model.sines + at * size, size);
            if (head < model.heads) continue;
            C* keys = (C*)layer.keys + (slot * model.kv_heads + head - model.heads) * blocks * size;
            for (int64_t index = 0; index < size; index++)
                narrow(vector[index], keys + at / PANEL * PANEL * size + index * PANEL + at % PANEL);
        }
        for (int64_t head = 0; head < model.kv_heads; head++, vector += size) {
            C* values = (C*)layer.values + ((slot * model.kv_heads + head) * blocks + at) * padded;
            for (int64_t index = 0; index < size; index++) narrow(vector[index], values + index);
        }
    }

    template <int R, class C> void attend(const Layer& layer, const Task& task, float* scores) {
        Attention<R, C> attention;
        for (int at = 0; at < R; at++) {
            int64_t row = task.row + (task.query + at) / shared, head = task.head * shared + (task.query + at) % shared;
            attention.query[at] = &mixed[row * mixed_wide + head * model.size];
            attention.out[at] = attended.row(row) + head * model.size;
            attention.length[at] = rows.positions[row] + 1;
        }
        int64_t place = (rows.slots[task.row] * model.kv_heads + task.head) * up(model.context, PANEL);
        attention.run((const C*)layer.keys + place * model.size, (const C*)layer.values + place * padded, model.size,
                      padded, scores);
    }

    template <class C, int R = QUERIES> void attend_to(const Layer& layer, const Task& task, float* scores) {
        if constexpr (R > 1)
            if (task.count < R) return attend_to<C, R - 1>(layer, task, scores);
        attend<R, C>(layer, task, scores);
    }

    void gate(int64_t row) {
        const float *gates = &inner[row * inner_wide], *ups = gates + model.inner;
        float* to = gated.row(row);
        int64_t index = 0;
        for (; index + LANES <= model.inner; index += LANES) {
            F value = load<F>(gates + index);
            store(to + index, value / (1.0f + power(-value)) * load<F>(ups + index));
        }
        for (; index < model.inner; index++) to[index] = gates[index] / (1.0f + std::exp(-gates[index])) * ups[index];
        gated.quantise(row);
    }

    // Computes one layer. Called by all threads.
    template <class T, class C> void layer(const Layer& layer, float* scores) {
#pragma omp for
        for (int64_t row = 0; row < rows.count; row++) norm_into(layer.before_attention, row, normed, row);
        multiply<T>(layer.query_key_value, normed, rows.count, mixed.data(), mixed_wide, layer.bias);
#pragma omp for
        for (int64_t row = 0; row < rows.count; row++) place<C>(layer, row);
#pragma omp for schedule(dynamic, 1)
        for (size_t task = 0; task < tasks.size(); task++) attend_to<C>(layer, tasks[task], scores);
#pragma omp for
        for (int64_t row = 0; row < rows.count; row++) attended.quantise(row);
        multiply<T>(layer.output, attended, rows.count, hidden.data(), hidden_wide, nullptr, true);
#pragma omp for
        for (int64_t row = 0; row < rows.count; row++) norm_into(layer.before_mlp, row, normed, row);
        multiply<T>(layer.gate_up, normed, rows.count, inner.data(), inner_wide);
#pragma omp for
        for (int64_t row = 0; row < rows.count; row++) gate(row);
        multiply<T>(layer.down, gated, rows.count, hidden.data(), hidden_wide, nullptr, true);
    }

    // T is the type of the layers' weights, E that of the embedding and the head, C that of keys and values.
    template <class T, class E, class C>
    void run(const int64_t* tokens, const int64_t* wanted, int64_t count, float* logits) {
        Inputs last(count, model.hidden, model.kind == INT4 ? int64_t(INT8) : model.kind);
        int64_t longest = up(*std::max_element(rows.positions, rows.positions + rows.count) + 1, PANEL);
#pragma omp parallel num_threads(model.threads)
        {
            std::vector<float> scores(QUERIES * longest);
#pragma omp for
            for (int64_t row = 0; row < rows.count; row++) embed<E>(row, tokens[row]);
            for (int64_t index = 0; index < model.count; index++) layer<T, C>(model.layers[index], scores.data());
#pragma omp for
            for (int64_t row = 0; row < count; row++) norm_into(model.norm, wanted[row], last, row);
            multiply<E>(model.head, last, count, logits, up(model.head.outputs, PANEL));
        }
    }
};

}  // namespace

// Writes the scores after each of the `wanted` rows, in the order of `wanted`, each padded to whole panels.
extern "C" void decoder_step(const Model* model, const int64_t* tokens, const int32_t* slots, const int32_t* positions,
                             int64_t count, const int64_t* wanted, int64_t wanted_count, float* logits) {
    Step step(*model, {slots, positions, count});
    if (model->kind == FLOAT)
        step.run<float, float, float>(tokens, wanted, wanted_count, logits);
    else if (model->kind == BFLOAT)
        step.run<uint16_t, uint16_t, uint16_t>(tokens, wanted, wanted_count, logits);
    else if (model->kind == INT8)
        step.run<uint8_t, uint8_t, uint16_t>(tokens, wanted, wanted_count, logits);
    else
        step.run<Nibbles, uint8_t, uint16_t>(tokens, wanted, wanted_count, logits);
}
