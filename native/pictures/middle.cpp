#include "middle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

// Whole numbers come out the same with any instructions, so the loader of glibc may take the best that the processor has.
#if defined(NNGK_X86) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define NNGK_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define NNGK_CLONES
#endif

namespace nngk {
namespace {

constexpr int BITS = 22;  // of a weight: eight more for a pixel and two to spare make 32
constexpr int HALF = 1 << (BITS - 1);
constexpr size_t AT_ONCE = 32;  // sums that stay in registers

// For each wanted pixel of a side: where its window begins, and the weights of the pixels in it.
struct Windows {
    size_t most = 0;
    std::vector<size_t> begin;
    std::vector<int32_t> weights;  // (wanted, most)

    explicit Windows(const Side& side) : begin(side.count) {
        std::vector<size_t> count(side.count);
        const double scale = double(side.own) / double(side.resized), wide = std::max(scale, 1.0);
        const auto centre = [&](size_t i) { return (double(side.first + i) + 0.5) * scale; };
        for (size_t i = 0; i < side.count; ++i) {
            const int low = std::max(int(centre(i) - wide + 0.5), 0), high = std::min(int(centre(i) + wide + 0.5), int(side.own));
            begin[i] = size_t(low), count[i] = size_t(high - low);
            most = std::max(most, count[i]);
        }
        weights.assign(side.count * most, 0);
        std::vector<double> w(most);
        for (size_t i = 0; i < side.count; ++i) {
            double sum = 0;
            for (size_t x = 0; x < count[i]; ++x)
                sum += w[x] = std::max(1 - std::abs((double(begin[i] + x) - centre(i) + 0.5) * (1 / wide)), 0.0);
            // Every window is as long as the longest, inside of the picture, with weights of zero for what it has too many.
            const size_t before = begin[i] - std::min(begin[i], side.own - most);
            begin[i] -= before;
            for (size_t x = 0; x < count[i]; ++x)
                weights[i * most + before + x] = int32_t(0.5 + (sum != 0 ? w[x] / sum : w[x]) * (1 << BITS));
        }
    }
};

// No weight is negative and together they are one, so that no sum leaves the range of a byte.
constexpr size_t ROWS = 8;  // that are made narrower together: the pixels of a column lie side by side
using Column = int32_t __attribute__((vector_size(4 * ROWS)));

// Rows of pixels of so many bytes each to the wanted ones, colour by colour. There is room in columns for the pixels of
// the windows, in made for the wanted ones, and in line for those of a row.
NNGK_CLONES void across(const uint8_t* const rows[ROWS], size_t each, const Windows& windows, int32_t* __restrict columns, int32_t* __restrict made,
                        uint32_t* __restrict line, uint8_t* const out[ROWS]) {
    const size_t most = windows.most, wanted = windows.begin.size(), first = windows.begin.front(), last = windows.begin.back() + most;
    for (size_t r = 0; r < ROWS; ++r) {
        const uint8_t* row = rows[r] + each * first;
        if (each == 4)
            for (size_t x = 0; x < last - first; ++x) std::memcpy(columns + ROWS * x + r, row + 4 * x, 4);
        else
            for (size_t x = 0; x < last - first; ++x, row += 3) columns[ROWS * x + r] = row[0] | row[1] << 8 | row[2] << 16;
    }
    const int32_t* weights = windows.weights.data();
    for (size_t i = 0; i < wanted; ++i, weights += most) {
        const int32_t* pixels = columns + ROWS * (windows.begin[i] - first);
        Column red = Column{} + HALF, green = red, blue = red;
        for (size_t x = 0; x < most; ++x, pixels += ROWS) {
            Column pixel;
            std::memcpy(&pixel, pixels, sizeof pixel);
            red += (pixel & 255) * weights[x];
            green += (pixel >> 8 & 255) * weights[x];
            blue += (pixel >> 16 & 255) * weights[x];
        }
        const Column together = red >> BITS | green >> BITS << 8 | blue >> BITS << 16;
        std::memcpy(made + ROWS * i, &together, sizeof together);
    }
    for (size_t r = 0; r < ROWS; ++r) {
        uint8_t* __restrict to = out[r];
        for (size_t i = 0; i < wanted; ++i) line[i] = uint32_t(made[ROWS * i + r]);
        for (size_t i = 0; i < wanted; ++i) to[i] = uint8_t(line[i]);
        for (size_t i = 0; i < wanted; ++i) to[wanted + i] = uint8_t(line[i] >> 8);
        for (size_t i = 0; i < wanted; ++i) to[2 * wanted + i] = uint8_t(line[i] >> 16);
    }
}

// Rows of numbers, each weighted, to one; they may be read beyond their end.
NNGK_CLONES void down(const uint8_t* rows, size_t stride, const int32_t* weights, size_t count, size_t bytes, uint8_t* __restrict out) {
    for (size_t first = 0; first < bytes; first += AT_ONCE) {
        int32_t sums[AT_ONCE];
        std::fill(sums, sums + AT_ONCE, HALF);
        for (size_t y = 0; y < count; ++y)
            for (size_t b = 0; b < AT_ONCE; ++b) sums[b] += int32_t(rows[y * stride + first + b]) * weights[y];
        uint8_t line[AT_ONCE];
        for (size_t b = 0; b < AT_ONCE; ++b) line[b] = uint8_t(sums[b] >> BITS);
        std::memcpy(out + first, line, std::min(AT_ONCE, bytes - first));
    }
}

}  // namespace

void middle(const uint8_t* pixels, size_t each, const Side& rows, const Side& columns, uint8_t* out) {
    if (!rows.count || !columns.count) return;
    const Windows vertical(rows), horizontal(columns);
    const size_t first = vertical.begin.front(), last = vertical.begin.back() + vertical.most;
    const size_t wanted = columns.count, stride = each * columns.own;
    std::vector<int32_t> taken(ROWS * columns.own), made(ROWS * wanted);
    std::vector<uint32_t> line(wanted);
    std::vector<uint8_t> narrow((last - first) * 3 * wanted + AT_ONCE);
    for (size_t y = first; y < last; y += ROWS) {
        const uint8_t* from[ROWS];
        uint8_t* to[ROWS];
        for (size_t r = 0; r < ROWS; ++r) {
            const size_t row = std::min(y + r, last - 1);
            from[r] = pixels + row * stride, to[r] = &narrow[(row - first) * 3 * wanted];
        }
        across(from, each, horizontal, taken.data(), made.data(), line.data(), to);
    }
    for (size_t colour = 0; colour < 3; ++colour)
        for (size_t y = 0; y < rows.count; ++y, out += wanted) {
            const uint8_t* top = &narrow[((vertical.begin[y] - first) * 3 + colour) * wanted];
            down(top, 3 * wanted, &vertical.weights[y * vertical.most], vertical.most, wanted, out);
        }
}

void levelled(const uint8_t* planes, size_t pixels, const float* levels, float* __restrict out) {
    const uint8_t *red = planes, *green = planes + pixels, *blue = planes + 2 * pixels;
    const float *reds = levels, *greens = levels + 256, *blues = levels + 512;
    for (size_t i = 0; i < pixels; ++i, out += 3) out[0] = reds[red[i]], out[1] = greens[green[i]], out[2] = blues[blue[i]];
}

}  // namespace nngk
