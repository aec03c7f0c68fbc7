// Attention over keys in blocks of 16 positions, [blocks][head size][16], and values in rows, one for each position.
#pragma once
#include "vectors.h"

namespace {

// The attention of R queries of one sequence over one head of its keys and values, which have type C.
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

    // Replaces the scores by their exponentials, with 0 past the end. Returns the factor that makes their sum 1.
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

}  // namespace
