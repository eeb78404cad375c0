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

// For each wanted pixel of a side: where its window begins, how many pixels it has, and their weights.
struct Windows {
    size_t most = 0;
    std::vector<size_t> begin, count;
    std::vector<int32_t> weights;  // (wanted, most)

    explicit Windows(const Side& side) : begin(side.count), count(side.count) {
        const double scale = double(side.own) / double(side.resized), wide = std::max(scale, 1.0);
        most = std::min(size_t(std::ceil(wide)) * 2 + 1, side.own);
        weights.assign(side.count * most, 0);
        std::vector<double> w(most);
        for (size_t i = 0; i < side.count; ++i) {
            const double centre = (double(side.first + i) + 0.5) * scale;
            const int low = std::max(int(centre - wide + 0.5), 0), high = std::min(int(centre + wide + 0.5), int(side.own));
            double sum = 0;
            for (int x = low; x < high; ++x) sum += w[x - low] = std::max(1 - std::abs((x - centre + 0.5) * (1 / wide)), 0.0);
            begin[i] = size_t(low), count[i] = size_t(high - low);
            for (int x = low; x < high; ++x)
                weights[i * most + (x - low)] = int32_t(0.5 + (sum != 0 ? w[x - low] / sum : w[x - low]) * (1 << BITS));
        }
    }
};

// No weight is negative and together they are one, so that no sum leaves the range of a byte.
using Four = int32_t __attribute__((vector_size(16)));

// One row of RGB pixels to the wanted ones. Every window is as long as the longest, with weights of zero at its end: a
// loop of one length is foreseen. Pixels are taken four numbers at a time, the last of which is thrown away: wide and
// made have room for a window and a number beyond.
NNGK_CLONES void across(const uint8_t* row, size_t bytes, const Windows& windows, int32_t* __restrict wide, int32_t* __restrict made, uint8_t* __restrict out) {
    for (size_t b = 0; b < bytes; ++b) wide[b] = row[b];
    const size_t most = windows.most, wanted = windows.begin.size();
    const size_t* begin = windows.begin.data();
    const int32_t* weights = windows.weights.data();
    for (size_t i = 0; i < wanted; ++i, weights += most) {
        const int32_t* pixel = wide + 3 * begin[i];
        Four sum = {HALF, HALF, HALF, HALF};
        for (size_t x = 0; x < most; ++x, pixel += 3) {
            Four four;
            std::memcpy(&four, pixel, sizeof four);
            sum += four * weights[x];
        }
        sum >>= BITS;
        std::memcpy(made + 3 * i, &sum, sizeof sum);
    }
    for (size_t b = 0; b < 3 * wanted; ++b) out[b] = uint8_t(made[b]);
}

// Rows of pixels, each weighted, to one, which goes to the three planes of out.
NNGK_CLONES void down(const uint8_t* rows, const int32_t* weights, size_t count, size_t bytes, int32_t* __restrict sums, uint8_t* __restrict line, uint8_t* __restrict out, size_t area) {
    std::fill(sums, sums + bytes, HALF);
    for (size_t y = 0; y < count; ++y, rows += bytes) {
        const int32_t weight = weights[y];
        for (size_t b = 0; b < bytes; ++b) sums[b] += int32_t(rows[b]) * weight;
    }
    for (size_t b = 0; b < bytes; ++b) line[b] = uint8_t(sums[b] >> BITS);
    for (size_t x = 0; x < bytes / 3; ++x) {
        out[x] = line[3 * x];
        out[area + x] = line[3 * x + 1];
        out[2 * area + x] = line[3 * x + 2];
    }
}

}  // namespace

void middle(const uint8_t* pixels, const Side& rows, const Side& columns, uint8_t* out) {
    if (!rows.count || !columns.count) return;
    const Windows vertical(rows), horizontal(columns);
    const size_t first = vertical.begin.front(), last = vertical.begin.back() + vertical.count.back();
    const size_t bytes = 3 * columns.count, area = rows.count * columns.count;
    std::vector<int32_t> wide(3 * (columns.own + horizontal.most) + 1), sums(bytes + 1);
    std::vector<uint8_t> narrow((last - first) * bytes), line(bytes);
    for (size_t y = first; y < last; ++y)
        across(pixels + y * 3 * columns.own, 3 * columns.own, horizontal, wide.data(), sums.data(), &narrow[(y - first) * bytes]);
    for (size_t y = 0; y < rows.count; ++y) {
        const uint8_t* top = &narrow[(vertical.begin[y] - first) * bytes];
        down(top, &vertical.weights[y * vertical.most], vertical.count[y], bytes, sums.data(), line.data(), out + y * columns.count, area);
    }
}

}  // namespace nngk
