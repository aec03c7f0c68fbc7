// Products of rows and matrices.
//
// A matrix is stored in panels of 16 outputs: as float [outputs / 16][inputs][16], as bfloat16 in pairs of inputs,
// [outputs / 16][inputs / 2][16][2], and as int8 in groups of four, [outputs / 16][inputs / 4][16][4]. 128 is added to
// weights in int8, because processors multiply unsigned bytes by signed ones.
//
// int4 is stored in blocks of 64 inputs, [outputs / 16][inputs / 64]. Each block has its scales, one for 32 inputs, as
// bfloat16 [2][16], and then its weights, [8][16][4]: the lower half of a byte is the weight of one of the first 32
// inputs, the upper half that of one of the other 32, and 8 is added to each.
#pragma once
#include <type_traits>
#include <vector>

#include "vectors.h"

namespace {

constexpr int GROUP = 64, FINE = 32;  // how many inputs share a scale: with weights in int8, and in int4
constexpr int BLOCK = 96;             // rows that stay in the inner cache while the panels are read
#if defined(__AVX512BF16__)
constexpr bool NARROWS = true;  // inputs of weights in bfloat16 are rounded to bfloat16, too
#else
constexpr bool NARROWS = false;
#endif
constexpr float LARGEST = 127.0f;
constexpr int OFFSET = 128, FINE_OFFSET = 8;  // what was added to weights in int8, and in int4

struct Matrix {
    const void* weights;
    const float* scales;  // one for each output, with weights in int8; otherwise null
    int64_t outputs, inputs;
};
enum { FLOAT, BFLOAT, INT8, INT4 };

// A block of GROUP inputs and PANEL outputs in int4.
struct Nibbles {
    uint16_t scales[GROUP / FINE][PANEL];
    uint8_t weights[FINE / 4][PANEL][4];
};

// Rows that are multiplied by a matrix: as float, as bfloat16, or as whole numbers with a scale for each group.
struct Inputs {
    int64_t wide, shared, groups, offset;
    std::vector<float> plain, scales;
    std::vector<uint16_t> narrowed;
    std::vector<int8_t> whole;
    std::vector<int32_t> excess;  // minus what the offset of the weights adds to the sum of a group

    Inputs(int64_t rows, int64_t inputs, int64_t kind)
        : wide(up(inputs, GROUP)), shared(kind == INT4 ? FINE : GROUP), groups(wide / shared),
          offset(kind == INT4 ? FINE_OFFSET : OFFSET) {
        plain.resize(rows * wide);
        if (kind == BFLOAT && NARROWS) narrowed.resize(rows * wide);
        if (kind != INT8 && kind != INT4) return;
        whole.resize(rows * wide);
        scales.resize(rows * groups);
        excess.resize(rows * groups);
    }
    float* row(int64_t at) { return &plain[at * wide]; }
    void quantise(int64_t at) {
        if (!narrowed.empty())
            for (int64_t index = 0; index < wide; index++) narrow(row(at)[index], &narrowed[at * wide + index]);
        if (!whole.empty())
            for (int64_t group = 0; group < groups; group++) quantise_group(at, group);
    }
    void quantise_group(int64_t at, int64_t group) {
        const float* from = row(at) + group * shared;
        F most{};
        for (int lane = 0; lane < shared; lane += LANES) {
            F value = load<F>(from + lane);
            most = larger(most, larger(value, -value));
        }
        float top = largest(most), factor = top > 0 ? LARGEST / top : 0;
        scales[at * groups + group] = top / LARGEST;
        I sum{};
        for (int lane = 0; lane < shared; lane += LANES) {
            // 1.5 * 2^23 leaves a float no bits for a fraction: adding it rounds to the nearest whole number.
            I rounded = (I)(load<F>(from + lane) * factor + 12582912.0f) - 0x4b400000;
            sum += rounded;
            store(&whole[at * wide + group * shared + lane], __builtin_convertvector(rounded, B));
        }
        int32_t all = 0;
        for (int lane = 0; lane < LANES; lane++) all += sum[lane];
        excess[at * groups + group] = -offset * all;
    }
    // Sets the sums of R rows to what they begin with in a group.
    template <int R, int C> void begin(int64_t row, int64_t group, I (&sums)[R][C]) const {
        for (int at = 0; at < R; at++)
            for (I& part : sums[at]) part = I{} + excess[(row + at) * groups + group];
    }
    // The factor that turns the sum of a group into a float.
    float scale(int64_t row, int64_t group) const { return scales[row * groups + group]; }
};

// Consecutive panels of a matrix, `stride` apart.
template <class T> struct Panels {
    const T* first;
    int64_t stride;
    // Part `at` of the weights for input `index`; `together` is how many inputs are stored side by side.
    const T* part(int at, int64_t index, int together) const {
        return first + at / PARTS * stride + index * PANEL + at % PARTS * LANES * together;
    }
};

// Multiplies R rows by P panels of a matrix.
template <int R, int P> void tile(Panels<float> panels, const Inputs& in, int64_t row, F (&sum)[R][P * PARTS]) {
    const float* from = &in.plain[row * in.wide];
    for (int64_t index = 0; index < in.wide; index++) {
        F weights[P * PARTS];
        for (int part = 0; part < P * PARTS; part++) weights[part] = load<F>(panels.part(part, index, 1));
        for (int at = 0; at < R; at++)
            for (int part = 0; part < P * PARTS; part++) sum[at][part] += weights[part] * from[at * in.wide + index];
    }
}

template <int R, int P> void tile(Panels<uint16_t> panels, const Inputs& in, int64_t row, F (&sum)[R][P * PARTS]) {
#if defined(__AVX512BF16__)
    const uint16_t* from = &in.narrowed[row * in.wide];
    for (int64_t index = 0; index < in.wide; index += 2) {
        __m512bh weights[P];
        for (int part = 0; part < P; part++) weights[part] = (__m512bh)load<I>(panels.part(part, index, 2));
        for (int at = 0; at < R; at++) {
            __m512bh pair = (__m512bh)(I{} + load<int32_t>(from + at * in.wide + index));
            for (int part = 0; part < P; part++)
                sum[at][part] = (F)_mm512_dpbf16_ps((__m512)sum[at][part], weights[part], pair);
        }
    }
#else
    const float* from = &in.plain[row * in.wide];
    for (int64_t index = 0; index < in.wide; index += 2)
        for (int part = 0; part < P * PARTS; part++) {
            W pair = load<W>(panels.part(part, index, 2));
            F even = (F)(pair << 16), odd = (F)(pair & 0xffff0000);
            for (int at = 0; at < R; at++) {
                sum[at][part] += even * from[at * in.wide + index];
                sum[at][part] += odd * from[at * in.wide + index + 1];
            }
        }
#endif
}

// With whole numbers it is not inlined, so that the sums of a group stay in registers and `sum` in memory. It also
// prefetches the weights at the same place of the next panels, which are multiplied next.
template <int R, int P>
__attribute__((noinline)) void tile(Panels<uint8_t> panels, const Inputs& in, int64_t row, F (&sum)[R][P * PARTS]) {
    const int8_t* from = &in.whole[row * in.wide];
    for (int64_t group = 0; group < in.groups; group++) {
        I whole[R][P * PARTS];
        in.begin(row, group, whole);
        for (int64_t index = group * GROUP; index < (group + 1) * GROUP; index += 4) {
            I weights[P * PARTS];
            for (int part = 0; part < P * PARTS; part++) {
                weights[part] = load<I>(panels.part(part, index, 4));
                __builtin_prefetch(panels.part(part + P * PARTS, index, 4));
            }
            for (int at = 0; at < R; at++) {
                I four = I{} + load<int32_t>(from + at * in.wide + index);
                for (int part = 0; part < P * PARTS; part++)
                    whole[at][part] = dot(whole[at][part], weights[part], four);
            }
        }
        for (int at = 0; at < R; at++)
            for (int part = 0; part < P * PARTS; part++)
                sum[at][part] += __builtin_convertvector(whole[at][part], F) * in.scale(row + at, group);
    }
}

template <int R, int P>
__attribute__((noinline)) void tile(Panels<Nibbles> panels, const Inputs& in, int64_t row, F (&sum)[R][P * PARTS]) {
    const int8_t* from = &in.whole[row * in.wide];
    for (int64_t group = 0; group < in.groups; group++) {
        const Nibbles* block = panels.first + group / 2;
        I whole[R][P * PARTS];
        in.begin(row, group, whole);
        for (int four = 0; four < FINE / 4; four++) {
            I weights[P * PARTS];
            for (int part = 0; part < P * PARTS; part++) {
                I both = load<I>(block[part / PARTS * panels.stride].weights[four][part % PARTS * LANES]);
                __builtin_prefetch(block[(part / PARTS + P) * panels.stride].weights[four][part % PARTS * LANES]);
                weights[part] = both >> int(group % 2 * 4) & 0x0f0f0f0f;
            }
            for (int at = 0; at < R; at++) {
                I inputs = I{} + load<int32_t>(from + at * in.wide + group * FINE + four * 4);
                for (int part = 0; part < P * PARTS; part++)
                    whole[at][part] = dot(whole[at][part], weights[part], inputs);
            }
        }
        for (int part = 0; part < P * PARTS; part++) {
            F scale = widen(&block[part / PARTS * panels.stride].scales[group % 2][part % PARTS * LANES]);
            for (int at = 0; at < R; at++)
                sum[at][part] += __builtin_convertvector(whole[at][part], F) * (scale * in.scale(row + at, group));
        }
    }
}

// How many panels are computed together: as many as the registers have room for the sums of, with this many rows.
constexpr int together(int64_t rows) { return LANES == 16 ? (rows <= 2 ? 4 : 2) : (rows == 1 ? 2 : 1); }

struct Product {
    const Matrix& matrix;
    const Inputs& in;
    float* out;
    int64_t stride;
    const float* bias;
    bool add;

    template <class T, int R, int P> void tile_of(int64_t panel, int64_t row) const {
        int64_t stride_of_panels = std::is_same_v<T, Nibbles> ? in.wide / GROUP : PANEL * in.wide;
        F sum[R][P * PARTS] = {};
        tile<R, P>(Panels<T>{(const T*)matrix.weights + panel * stride_of_panels, stride_of_panels}, in, row, sum);
        for (int at = 0; at < R; at++)
            for (int part = 0; part < P * PARTS; part++) {
                int64_t first = panel * PANEL + part * LANES;
                F value = sum[at][part];
                if (matrix.scales) value *= load<F>(matrix.scales + first);
                if (bias) value += load<F>(bias + first);
                float* to = out + (row + at) * stride + first;
                store(to, add ? load<F>(to) + value : value);
            }
    }

    template <class T, int R> void panels_of(int64_t panel, int64_t end, int64_t row) const {
        for (; panel + together(R) <= end; panel += together(R)) tile_of<T, R, together(R)>(panel, row);
        for (; panel < end; panel++) tile_of<T, R, 1>(panel, row);
    }

    template <class T, int R = ROWS> void rows_of(int64_t panel, int64_t end, int64_t row, int64_t rows) const {
        if constexpr (R > 1)
            if (rows < R) return rows_of<T, R - 1>(panel, end, row, rows);
        panels_of<T, R>(panel, end, row);
    }
};

// Multiplies rows by a matrix. Called by all threads, which share the panels. The outputs of a row are padded to whole
// panels, and rows of outputs are `stride` apart. With `add` the result is added to `out`.
template <class T>
void multiply(const Matrix& matrix, const Inputs& in, int64_t rows, float* out, int64_t stride,
              const float* bias = nullptr, bool add = false) {
    int64_t panels = up(matrix.outputs, PANEL) / PANEL, unit = together(rows);
    Product product{matrix, in, out, stride, bias, add};
    for (int64_t block = 0; block < rows; block += BLOCK) {
        int64_t end = std::min(rows, block + BLOCK);
#pragma omp for schedule(dynamic, 1)
        for (int64_t panel = 0; panel < panels; panel += unit)
            for (int64_t row = block, count; row < end; row += count) {
                // Splits the rows evenly: 16 rows become twice 8.
                count = up(end - row, ROWS) / ROWS;
                count = up(end - row, count) / count;
                product.rows_of<T>(panel, std::min(panels, panel + unit), row, count);
            }
    }
}

}  // namespace
