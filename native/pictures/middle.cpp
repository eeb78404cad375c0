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
using Four = int32_t __attribute__((vector_size(16)));

// One row of pixels of so many numbers each to the wanted ones, colour by colour. Pixels are taken four numbers at a time,
// the last of which is thrown away: wide has room for one number beyond, and made for four of each wanted pixel.
NNGK_CLONES void across(const uint8_t* row, size_t own, size_t each, const Windows& windows, int32_t* __restrict wide, int32_t* __restrict made, uint8_t* __restrict out) {
    for (size_t b = 0; b < own * each; ++b) wide[b] = row[b];
    const size_t most = windows.most, wanted = windows.begin.size();
    const size_t* begin = windows.begin.data();
    const int32_t* weights = windows.weights.data();
    for (size_t i = 0; i < wanted; ++i, weights += most) {
        const int32_t* pixel = wide + each * begin[i];
        Four sum = {HALF, HALF, HALF, HALF};
        for (size_t x = 0; x < most; ++x, pixel += each) {
            Four four;
            std::memcpy(&four, pixel, sizeof four);
            sum += four * weights[x];
        }
        sum >>= BITS;
        std::memcpy(made + 4 * i, &sum, sizeof sum);
    }
    for (size_t colour = 0; colour < 3; ++colour)
        for (size_t i = 0; i < wanted; ++i) out[colour * wanted + i] = uint8_t(made[4 * i + colour]);
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
    const size_t wanted = columns.count;
    std::vector<int32_t> wide(each * columns.own + 1), made(4 * wanted);
    std::vector<uint8_t> narrow((last - first) * 3 * wanted + AT_ONCE);
    for (size_t y = first; y < last; ++y)
        across(pixels + y * each * columns.own, columns.own, each, horizontal, wide.data(), made.data(), &narrow[(y - first) * 3 * wanted]);
    for (size_t colour = 0; colour < 3; ++colour)
        for (size_t y = 0; y < rows.count; ++y, out += wanted) {
            const uint8_t* top = &narrow[((vertical.begin[y] - first) * 3 + colour) * wanted];
            down(top, 3 * wanted, &vertical.weights[y * vertical.most], vertical.most, wanted, out);
        }
}

}  // namespace nngk
