// What it costs a point to find its neighbours, in one way or the other, so that the cheaper one is taken. The unit is
// one multiply-add of a product of all pairs. Fitted to trials on points of every kind (benchmarks/search/lists.py).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace nngk {

// A list of `width` takes in about so many candidates until it has seen `met` of them in no particular order.
inline double taken(double width, double met) { return width * (1 + std::log(std::max(1.0, met / width))); }

// All pairs, each once for both of its points.
inline double pairs_cost(size_t n, size_t dim, size_t width) {
    constexpr double BESIDE = 6;    // multiply-adds that a pair costs beside its product
    constexpr double TAKEN = 2600;  // that a candidate costs which is taken into a list
    return double(n) / 2 * (double(dim) + BESIDE) + TAKEN * taken(double(width), double(n));
}

// The pairs of a share of the cells. `making`: the part of the work on cells that is still to be done, of which they have
// three: their first centres are chosen, trained, and the points put into cells.
enum class Stage { chosen, trained, settled };
inline double cells_cost(size_t n, size_t dim, size_t width, double share, Stage stage) {
    constexpr double TRAIN = 0.076, SETTLE = 0.049; // of a half of all pairs: there are n/41 cells
    constexpr double BESIDE_CENTRE = 55, BESIDE = 290, TAKEN = 2000;
    // Two points may meet from both sides, and a few of a cell's points that look take as long as eight.
    constexpr double MEETINGS = 4;
    const double making = stage == Stage::chosen ? TRAIN + SETTLE : stage == Stage::trained ? SETTLE : 0;
    return double(n) / 2 * (making * (double(dim) + BESIDE_CENTRE) + MEETINGS * share * (double(dim) + BESIDE)) +
           TAKEN * taken(double(width), 2 * share * double(n));
}

}  // namespace nngk
