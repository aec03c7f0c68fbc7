// A decoder of Llama's kind for CPUs: what `model.compile: aot` compiles for the text handler.
//
// Rows are tokens: one of each sequence that writes, or many of one that is read, in any mixture. Every row is computed
// by the same operations in the same order whatever is beside it, so an answer is the same to the bit alone, in a full
// batch, and in whatever pieces its prompt is read.
//
// A matrix lies in panels of 16 outputs: [outputs / 16][inputs][16] in float, and in pairs of inputs as bfloat16 or
// int8, [outputs / 16][inputs / 2][16][2]. Keys lie in blocks of 16 positions, [blocks][head][16], values in rows.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int PANEL = 16;
constexpr int GROUP = 64;  // inputs that share a scale, where they are whole numbers
constexpr int ROWS = 6;    // computed together: their sums and a panel fill the registers
constexpr int BLOCK = 96;  // rows that stay in the nearer cache while the panels pass
#if defined(__AVX512BW__)
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
#if defined(__AVX512BF16__)
constexpr bool NARROWS = true;  // what meets weights in bfloat16 becomes such itself
#else
constexpr bool NARROWS = false;
#endif
constexpr int PARTS = PANEL / LANES;
constexpr float LARGEST = 32767.0f;

typedef float F __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef uint32_t W __attribute__((vector_size(4 * LANES)));
typedef int16_t S __attribute__((vector_size(4 * LANES)));
typedef uint16_t H __attribute__((vector_size(2 * LANES)));
typedef int8_t B __attribute__((vector_size(2 * LANES)));

template <class V, class T> V load(const T* at) {
    V value;
    memcpy(&value, at, sizeof value);
    return value;
}
template <class T, class V> void store(T* at, V value) { memcpy(at, &value, sizeof value); }
F splat(float value) { return F{} + value; }
F widen(const float* at) { return load<F>(at); }
#if defined(__AVX512BW__)
F widen(const uint16_t* at) { return (F)((W)_mm512_cvtepu16_epi32((__m256i)load<H>(at)) << 16); }
S widen(const int8_t* at) { return (S)_mm512_cvtepi8_epi16((__m256i)load<B>(at)); }
#elif defined(__AVX2__)
F widen(const uint16_t* at) { return (F)((W)_mm256_cvtepu16_epi32((__m128i)load<H>(at)) << 16); }
S widen(const int8_t* at) { return (S)_mm256_cvtepi8_epi16((__m128i)load<B>(at)); }
#else
F widen(const uint16_t* at) { return (F)(__builtin_convertvector(load<H>(at), W) << 16); }
S widen(const int8_t* at) { return __builtin_convertvector(load<B>(at), S); }
#endif
void narrow(float value, float* at) { *at = value; }
void narrow(float value, uint16_t* at) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    *at = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

I dot(I sum, S left, S right) {
#if defined(__AVX512VNNI__)
    return (I)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)left, (__m512i)right);
#elif defined(__AVX512BW__)
    return sum + (I)_mm512_madd_epi16((__m512i)left, (__m512i)right);
#elif defined(__AVX2__)
    return sum + (I)_mm256_madd_epi16((__m256i)left, (__m256i)right);
#else
    return sum + ((I)left << 16 >> 16) * ((I)right << 16 >> 16) + ((I)left >> 16) * ((I)right >> 16);
#endif
}

float total(F value) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += value[lane];
    return sum;
}
F larger(F left, F right) { return left > right ? left : right; }
float largest(F value) {
    float most = value[0];
    for (int lane = 1; lane < LANES; lane++) most = std::max(most, value[lane]);
    return most;
}

// e to the power of each, to the last place or two: 2 to the whole part by the exponent, to the rest by a polynomial.
F power(F value) {
    F times = larger(value * 1.44269504f, splat(-126.0f));
    times = times < 126.0f ? times : splat(126.0f);
    I whole = __builtin_convertvector(times + (times < 0.0f ? splat(-0.5f) : splat(0.5f)), I);
    F rest = (times - __builtin_convertvector(whole, F)) * 0.69314718f;
    F sum = splat(1.0f / 5040);
    for (float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) sum = sum * rest + factor;
    return sum * (F)((whole + 127) << 23);
}

struct Matrix {
    const void* weights;
    const float* scales;  // of every output, where weights are int8
    int64_t outputs, inputs;
};
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

int64_t up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

enum { FLOAT, BFLOAT, INT8 };

// Rows on their way into a matrix: as they are, as bfloat16, or as whole numbers with a scale for each group.
struct Inputs {
    int64_t wide, groups;
    std::vector<float> plain, scales;
    std::vector<int16_t> whole;

    Inputs(int64_t rows, int64_t inputs, int64_t kind) : wide(up(inputs, GROUP)), groups(wide / GROUP) {
        plain.resize(rows * wide);
        if (kind == INT8 || (kind == BFLOAT && NARROWS)) whole.resize(rows * wide);
        if (kind == INT8) scales.resize(rows * groups);
    }
    float* row(int64_t at) { return &plain[at * wide]; }
    void quantise(int64_t at) {
        if (whole.empty()) return;
        if (scales.empty()) {
            for (int64_t index = 0; index < wide; index++)
                narrow(plain[at * wide + index], (uint16_t*)&whole[at * wide + index]);
            return;
        }
        for (int64_t group = 0; group < groups; group++) {
            const float* from = row(at) + group * GROUP;
            int16_t* to = &whole[at * wide + group * GROUP];
            F most{};
            for (int lane = 0; lane < GROUP; lane += LANES) {
                F value = load<F>(from + lane);
                most = larger(most, larger(value, -value));
            }
            float top = largest(most), factor = top > 0 ? LARGEST / top : 0;
            scales[at * groups + group] = top / LARGEST;
            for (int index = 0; index < GROUP; index++) to[index] = (int16_t)std::lrintf(from[index] * factor);
        }
    }
};

// The sums of some rows with one panel of a matrix.
template <int R> void tile(const float* panel, const Inputs& in, int64_t row, F (&sum)[R][PARTS]) {
    const float* from = &in.plain[row * in.wide];
    for (auto& each : sum)
        for (F& part : each) part = F{};
    for (int64_t index = 0; index < in.wide; index++) {
        F weights[PARTS];
        for (int part = 0; part < PARTS; part++) weights[part] = widen(panel + index * PANEL + part * LANES);
        for (int at = 0; at < R; at++)
            for (int part = 0; part < PARTS; part++) sum[at][part] += weights[part] * from[at * in.wide + index];
    }
}

template <int R> void tile(const uint16_t* panel, const Inputs& in, int64_t row, F (&sum)[R][PARTS]) {
    for (auto& each : sum)
        for (F& part : each) part = F{};
#if defined(__AVX512BF16__)
    const int16_t* from = &in.whole[row * in.wide];
    for (int64_t index = 0; index < in.wide; index += 2) {
        __m512bh weights = (__m512bh)load<S>(panel + index * PANEL);
        for (int at = 0; at < R; at++) {
            __m512bh pair = (__m512bh)(I{} + load<int32_t>(from + at * in.wide + index));
            sum[at][0] = (F)_mm512_dpbf16_ps((__m512)sum[at][0], weights, pair);
        }
    }
#else
    const float* from = &in.plain[row * in.wide];
    for (int64_t index = 0; index < in.wide; index += 2)
        for (int part = 0; part < PARTS; part++) {
            W pair = load<W>(panel + index * PANEL + part * 2 * LANES);
            F even = (F)(pair << 16), odd = (F)(pair & 0xffff0000);
            for (int at = 0; at < R; at++) {
                sum[at][part] += even * from[at * in.wide + index];
                sum[at][part] += odd * from[at * in.wide + index + 1];
            }
        }
#endif
}

template <int R> void tile(const int8_t* panel, const Inputs& in, int64_t row, F (&sum)[R][PARTS]) {
    const int16_t* from = &in.whole[row * in.wide];
    const float* scales = &in.scales[row * in.groups];
    for (auto& each : sum)
        for (F& part : each) part = F{};
    for (int64_t group = 0; group < in.groups; group++) {
        I whole[R][PARTS] = {};
        for (int64_t index = group * GROUP; index < (group + 1) * GROUP; index += 2) {
            S weights[PARTS];
            for (int part = 0; part < PARTS; part++)
                weights[part] = widen(panel + index * PANEL + part * 2 * LANES);
            for (int at = 0; at < R; at++) {
                S pair = (S)(I{} + load<int32_t>(from + at * in.wide + index));
                for (int part = 0; part < PARTS; part++) whole[at][part] = dot(whole[at][part], weights[part], pair);
            }
        }
        for (int at = 0; at < R; at++)
            for (int part = 0; part < PARTS; part++)
                sum[at][part] += __builtin_convertvector(whole[at][part], F) * scales[at * in.groups + group];
    }
}

// One panel for up to ROWS rows; `add` adds to what is there.
template <int R, class T>
void panel_of_rows(const Matrix& matrix, int64_t panel, const Inputs& in, int64_t row, float* out, int64_t stride,
                   const float* bias, bool add) {
    F sum[R][PARTS];
    tile<R>((const T*)matrix.weights + panel * PANEL * in.wide, in, row, sum);
    for (int at = 0; at < R; at++)
        for (int part = 0; part < PARTS; part++) {
            int64_t first = panel * PANEL + part * LANES;
            F value = sum[at][part];
            if (matrix.scales) value *= load<F>(matrix.scales + first);
            if (bias) value += load<F>(bias + first);
            float* to = out + (row + at) * stride + first;
            store(to, add ? load<F>(to) + value : value);
        }
}

template <class T>
void panel_of(const Matrix& matrix, int64_t panel, const Inputs& in, int64_t row, int64_t rows, float* out,
              int64_t stride, const float* bias, bool add) {
    switch (rows) {
        case 1: return panel_of_rows<1, T>(matrix, panel, in, row, out, stride, bias, add);
        case 2: return panel_of_rows<2, T>(matrix, panel, in, row, out, stride, bias, add);
        case 3: return panel_of_rows<3, T>(matrix, panel, in, row, out, stride, bias, add);
        case 4: return panel_of_rows<4, T>(matrix, panel, in, row, out, stride, bias, add);
        case 5: return panel_of_rows<5, T>(matrix, panel, in, row, out, stride, bias, add);
        default: return panel_of_rows<6, T>(matrix, panel, in, row, out, stride, bias, add);
    }
}

// Called by all threads: each takes panels. Outputs are padded to whole panels, `stride` apart.
template <class T>
void multiply(const Matrix& matrix, const Inputs& in, int64_t rows, float* out, int64_t stride,
              const float* bias = nullptr, bool add = false) {
    int64_t panels = up(matrix.outputs, PANEL) / PANEL;
    for (int64_t block = 0; block < rows; block += BLOCK) {
        int64_t end = std::min(rows, block + BLOCK);
#pragma omp for schedule(dynamic, 2)
        for (int64_t panel = 0; panel < panels; panel++)
            for (int64_t row = block; row < end; row += ROWS)
                panel_of<T>(matrix, panel, in, row, std::min<int64_t>(ROWS, end - row), out, stride, bias, add);
    }
}

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

// A few queries of one sequence and one head of its keys.
template <int R, class C> struct Attention {
    const float* query[R];
    float* out[R];
    int64_t length[R];

    void run(const C* keys, const C* values, int64_t size, int64_t padded, float* scores) {
        int64_t longest = *std::max_element(length, length + R), room = up(longest, PANEL);
        for (int64_t block = 0; block < room; block += PANEL) {
            F sum[R][PARTS] = {};
            for (int64_t index = 0; index < size; index++)
                for (int part = 0; part < PARTS; part++) {
                    F key = widen(keys + block * size + index * PANEL + part * LANES);
                    for (int at = 0; at < R; at++) sum[at][part] += key * query[at][index];
                }
            for (int at = 0; at < R; at++)
                for (int part = 0; part < PARTS; part++)
                    store(scores + at * room + block + part * LANES, sum[at][part]);
        }
        F shares[R];
        for (int at = 0; at < R; at++) shares[at] = splat(weigh(scores + at * room, length[at], room, size));
        for (int64_t chunk = 0; chunk < padded; chunk += PANEL) {
            F sum[R][PARTS] = {};
            for (int64_t index = 0; index < longest; index++)
                for (int part = 0; part < PARTS; part++) {
                    F value = widen(values + index * padded + chunk + part * LANES);
                    for (int at = 0; at < R; at++) sum[at][part] += value * scores[at * room + index];
                }
            for (int at = 0; at < R; at++)
                for (int part = 0; part < PARTS; part++) {
                    F value = sum[at][part] * shares[at];
                    int64_t first = chunk + part * LANES;
                    memcpy(out[at] + first, &value, 4 * std::clamp<int64_t>(size - first, 0, LANES));
                }
        }
    }

    // Scores become their exponentials, 0 past the end; what all of them are to be multiplied by.
    static float weigh(float* scores, int64_t length, int64_t room, int64_t size) {
        std::fill(scores + length, scores + room, -INFINITY);
        F most = load<F>(scores);
        for (int64_t index = LANES; index < room; index += LANES) most = larger(most, load<F>(scores + index));
        float top = largest(most), factor = 1.0f / std::sqrt((float)size);
        F sum{};
        for (int64_t index = 0; index < room; index += LANES) {
            F score = load<F>(scores + index);
            F share = score > -INFINITY ? power((score - top) * factor) : F{};
            store(scores + index, share);
            sum += share;
        }
        return 1.0f / total(sum);
    }
};

struct Rows {
    const int32_t *slots, *positions;
    int64_t count;
};

// Tasks of the attention: queries of one sequence and one head of keys, as many as are computed together.
struct Task {
    int64_t row, query, count, head;
};

std::vector<Task> tasks_of(const Model& model, const Rows& rows) {
    std::vector<Task> tasks;
    int64_t shared = model.heads / model.kv_heads;
    for (int64_t row = 0, end; row < rows.count; row = end) {
        for (end = row; end < rows.count && rows.slots[end] == rows.slots[row];) end++;
        for (int64_t query = 0; query < (end - row) * shared; query += ROWS)
            for (int64_t head = 0; head < model.kv_heads; head++)
                tasks.push_back({row, query, std::min<int64_t>(ROWS, (end - row) * shared - query), head});
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
            int64_t paired = index / 2 * 2 * PANEL + of * 2 + index % 2;
            if constexpr (sizeof(T) == 1)
                hidden[row * hidden_wide + index] = panel[paired] * model.embedding.scales[token];
            else if constexpr (sizeof(T) == 2) {
                uint32_t bits = (uint32_t)panel[paired] << 16;
                memcpy(&hidden[row * hidden_wide + index], &bits, 4);
            } else
                hidden[row * hidden_wide + index] = panel[index * PANEL + of];
        }
    }

    void norm_into(const float* weight, int64_t from, int64_t to) {
        normalise(&hidden[from * hidden_wide], weight, model.hidden, model.epsilon, normed.row(to));
        normed.quantise(to);
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

    template <class C> void attend_to(const Layer& layer, const Task& task, float* scores) {
        switch (task.count) {
            case 1: return attend<1, C>(layer, task, scores);
            case 2: return attend<2, C>(layer, task, scores);
            case 3: return attend<3, C>(layer, task, scores);
            case 4: return attend<4, C>(layer, task, scores);
            case 5: return attend<5, C>(layer, task, scores);
            default: return attend<6, C>(layer, task, scores);
        }
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

    // Called by all threads.
    template <class T, class C> void layer(const Layer& layer, float* scores) {
#pragma omp for
        for (int64_t row = 0; row < rows.count; row++) norm_into(layer.before_attention, row, row);
        multiply<T>(layer.query_key_value, normed, rows.count, mixed.data(), mixed_wide, layer.bias);
#pragma omp for
        for (int64_t row = 0; row < rows.count; row++) place<C>(layer, row);
#pragma omp for schedule(dynamic, 1)
        for (size_t task = 0; task < tasks.size(); task++) attend_to<C>(layer, tasks[task], scores);
#pragma omp for
        for (int64_t row = 0; row < rows.count; row++) attended.quantise(row);
        multiply<T>(layer.output, attended, rows.count, hidden.data(), hidden_wide, nullptr, true);
#pragma omp for
        for (int64_t row = 0; row < rows.count; row++) norm_into(layer.before_mlp, row, row);
        multiply<T>(layer.gate_up, normed, rows.count, inner.data(), inner_wide);
#pragma omp for
        for (int64_t row = 0; row < rows.count; row++) gate(row);
        multiply<T>(layer.down, gated, rows.count, hidden.data(), hidden_wide, nullptr, true);
    }

    template <class T, class C>
    void run(const int64_t* tokens, const int64_t* wanted, int64_t count, float* logits) {
        int64_t longest = up(*std::max_element(rows.positions, rows.positions + rows.count) + 1, PANEL);
#pragma omp parallel num_threads(model.threads)
        {
            std::vector<float> scores(ROWS * longest);
#pragma omp for
            for (int64_t row = 0; row < rows.count; row++) embed<T>(row, tokens[row]);
            for (int64_t index = 0; index < model.count; index++) layer<T, C>(model.layers[index], scores.data());
#pragma omp for
            for (int64_t row = 0; row < count; row++) norm_into(model.norm, wanted[row], row);
            multiply<T>(model.head, normed, count, logits, up(model.head.outputs, PANEL));
        }
    }
};

}  // namespace

// Writes the scores after each of the `wanted` rows, in the order of the rows, `outputs` padded to whole panels.
extern "C" void decoder_step(const Model* model, const int64_t* tokens, const int32_t* slots, const int32_t* positions,
                             int64_t count, const int64_t* wanted, int64_t wanted_count, float* logits) {
    Step step(*model, {slots, positions, count});
    if (model->kind == FLOAT)
        step.run<float, float>(tokens, wanted, wanted_count, logits);
    else if (model->kind == BFLOAT)
        step.run<uint16_t, uint16_t>(tokens, wanted, wanted_count, logits);
    else
        step.run<int8_t, uint16_t>(tokens, wanted, wanted_count, logits);
}
