// The loops themselves, once for vectors of any width. Each file that includes this is compiled for its own instruction
// set, and everything here is in an anonymous namespace, so that none of it is linked into another.
#pragma once

#include "kernels.h"

namespace nngk::maps {
namespace {

template <int WIDTH>
struct Lanes {
    typedef float V __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
    static V load(const float* x) { return *reinterpret_cast<const V*>(x); }
    static void store(float* x, V v) { *reinterpret_cast<V*>(x) = v; }
    // What is not a number stays so.
    static V bounded(V v, const Bounds& b) {
        const V low = V{} + b.low, high = V{} + b.high;
        v = v < low ? low : v;
        return v > high ? high : v;
    }
};

// ROWS pixels by PANELS panels stay in registers while the channels go by.
template <int WIDTH, int ROWS, int PANELS>
void tile(const Product& p, size_t first, size_t panel) {
    using L = Lanes<WIDTH>;
    constexpr int EACH = int(PANEL) / WIDTH, COUNT = PANELS * EACH;
    typename L::V sum[ROWS][COUNT];
    const float* bias = p.bias + panel * PANEL;
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < COUNT; ++v) sum[r][v] = L::load(bias + v * WIDTH);
    const float* weight = p.weight + panel * p.depth * PANEL;
    const size_t apart = p.depth * PANEL;
    const float* a = p.a + first * p.stride;
    for (size_t k = 0; k < p.depth; ++k) {
        typename L::V w[COUNT];
        for (int v = 0; v < COUNT; ++v) w[v] = L::load(weight + size_t(v / EACH) * apart + k * PANEL + size_t(v % EACH) * WIDTH);
        for (int r = 0; r < ROWS; ++r) {
            const float value = a[size_t(r) * p.stride + k];
            for (int v = 0; v < COUNT; ++v) sum[r][v] += value * w[v];
        }
    }
    const size_t step = p.panels * PANEL;
    for (int r = 0; r < ROWS; ++r) {
        const size_t at = (first + size_t(r)) * step + panel * PANEL;
        for (int v = 0; v < COUNT; ++v) {
            typename L::V value = L::bounded(sum[r][v], p.bounds);
            if (p.beside) value += L::load(p.beside + at + size_t(v) * WIDTH);
            L::store(p.out + at + size_t(v) * WIDTH, value);
        }
    }
}

template <int WIDTH, int ROWS, int PANELS>
void strip(const Product& p, size_t pixels, size_t panel) {
    size_t first = 0;
    for (; first + ROWS <= pixels; first += ROWS) tile<WIDTH, ROWS, PANELS>(p, first, panel);
    for (; first + 2 <= pixels; first += 2) tile<WIDTH, 2, PANELS>(p, first, panel);
    for (; first < pixels; ++first) tile<WIDTH, 1, PANELS>(p, first, panel);
}

// A group of panels is read for all pixels before the next one: it stays in a cache.
template <int WIDTH, int ROWS, int PANELS>
void product(const Product& p, size_t pixels) {
    size_t panel = p.begin;
    while (panel < p.end) {
        const size_t left = p.end - panel;
        if (PANELS >= 3 && left >= 3 && left != 4) {
            strip<WIDTH, ROWS, PANELS>(p, pixels, panel), panel += 3;
        } else if (PANELS >= 2 && left >= 2) {
            strip<WIDTH, ROWS, (PANELS >= 2 ? 2 : 1)>(p, pixels, panel), panel += 2;
        } else {
            strip<WIDTH, ROWS, 1>(p, pixels, panel), panel += 1;
        }
    }
}

// COUNT neighbouring pixels of one row, of which each reads the columns [from, to) of the kernel.
template <int WIDTH, int COUNT, int KERNEL, int STRIDE>
inline void outputs(const Depthwise& d, size_t channel, size_t x, const float* weight, int from, int to) {
    using L = Lanes<WIDTH>;
    typename L::V sum[COUNT];
    for (int i = 0; i < COUNT; ++i) sum[i] = L::load(d.bias + channel);
    const std::ptrdiff_t start = std::ptrdiff_t(x) * STRIDE - std::ptrdiff_t(d.left);
    for (int ky = 0; ky < KERNEL; ++ky) {
        if (!d.rows[ky]) continue;
        for (int kx = from; kx < to; ++kx) {
            const auto w = L::load(weight + size_t(ky * KERNEL + kx) * PANEL);
            const float* at = d.rows[ky] + (start + kx) * std::ptrdiff_t(d.channels) + channel;
            for (int i = 0; i < COUNT; ++i) sum[i] += w * L::load(at + size_t(i * STRIDE) * d.channels);
        }
    }
    for (int i = 0; i < COUNT; ++i) L::store(d.out + (x + size_t(i)) * d.channels + channel, L::bounded(sum[i], d.bounds));
}

template <int WIDTH, int KERNEL, int STRIDE>
void row(const Depthwise& d) {
    constexpr size_t MANY = 4;
    const size_t left = (d.left + STRIDE - 1) / STRIDE;  // the first pixel whose columns all lie on the map
    const size_t reach = d.width + d.left;
    const size_t right = reach < KERNEL ? 0 : (reach - KERNEL) / STRIDE + 1;  // and the first after the last of them
    for (size_t channel = d.begin; channel < d.end; channel += WIDTH) {
        const float* weight = d.weight + channel / PANEL * KERNEL * KERNEL * PANEL + channel % PANEL;
        for (size_t x = 0; x < d.out_width;) {
            if (x >= left && x + MANY <= right && x + MANY <= d.out_width) {
                outputs<WIDTH, MANY, KERNEL, STRIDE>(d, channel, x, weight, 0, KERNEL), x += MANY;
            } else {
                const int start = int(x * STRIDE) - int(d.left);
                const int from = start < 0 ? -start : 0, over = start + KERNEL - int(d.width);
                outputs<WIDTH, 1, KERNEL, STRIDE>(d, channel, x, weight, from, KERNEL - (over > 0 ? over : 0)), ++x;
            }
        }
    }
}

template <int WIDTH>
void depthwise(const Depthwise& d) {
    if (d.kernel == 3) return d.stride == 1 ? row<WIDTH, 3, 1>(d) : row<WIDTH, 3, 2>(d);
    return d.stride == 1 ? row<WIDTH, 5, 1>(d) : row<WIDTH, 5, 2>(d);
}

}  // namespace
}  // namespace nngk::maps
