// Edges between parts of the graph that the neighbour lists do not join.
#include "cells.h"
#include "exact.h"
#include "fanng.h"
#include "occlusion.h"
#include "threads.h"

#include <numeric>
#include <random>

namespace nngk {
namespace {

constexpr size_t REACH = 16;      // neighbours of a vertex among which one that stands for it is looked for
constexpr double NEAR = 4;        // and how far it may be: twice as far as its own neighbours, squared
constexpr size_t TOP = 48;        // vertices that need no coarser ones: a list holds most of them
constexpr size_t WIDTH = 32;      // others of a level that each is offered
constexpr size_t EXACT = 16384;   // vertices up to which all pairs of a level are compared
constexpr size_t PROBES = 16;     // cells that each looks at beyond

// The neighbours of each vertex of a level, in order of distance.
struct Near {
    const uint32_t* lists;
    size_t width;
    const uint32_t* of(size_t i) const { return lists + i * width; }
};

// Vertices such that every other has one of them near, none of which is near another, as far as the lists tell.
template <class Space>
std::vector<uint32_t> standing_for_all(Space space, const std::vector<uint32_t>& vertex, const Near& near, uint64_t seed) {
    const size_t n = vertex.size(), reach = std::min(REACH, near.width);
    std::vector<uint32_t> order(n), chosen;
    std::iota(order.begin(), order.end(), 0u);
    std::mt19937_64 random(seed);
    for (size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    std::vector<double> radius(n, -1);  // of those chosen
    for (const uint32_t i : order) {
        const uint32_t* list = near.of(i);
        bool covered = false;
        double last = 0;
        space.ask_point(vertex[i]);
        for (size_t j = 0; j < reach && list[j] != NONE && !covered; ++j) {
            const bool end = j + 1 == reach || list[j + 1] == NONE;
            if (radius[list[j]] < 0 && !end) continue;
            const uint32_t v = vertex[list[j]];
            measure_all(space, &v, 1, [&](uint32_t d, uint32_t) { last = Space::value(d); });
            covered = radius[list[j]] >= 0 && last <= NEAR * radius[list[j]];
        }
        if (!covered) radius[i] = last, chosen.push_back(i);
    }
    std::sort(chosen.begin(), chosen.end());
    return chosen;
}

std::vector<uint32_t> lists_among(const Points& points, const std::vector<uint32_t>& vertex, size_t width, int threads) {
    const size_t n = vertex.size(), padded = points.padded();
    Array<float> x(n * padded);
    for (size_t i = 0; i < n; ++i) points.get(vertex[i], &x[i * padded]);
    std::vector<uint32_t> lists(n * width, NONE);
    if (n <= EXACT) {
        Array<float> distances(n * width);
        Array<int64_t> indices(n * width);
        ExactIndex(x.data(), n, padded, threads).all_neighbours(width, threads, distances.data(), indices.data());
        for (size_t j = 0; j < n * width; ++j) lists[j] = indices[j] < 0 ? NONE : uint32_t(indices[j]);
        return lists;
    }
    Cells cells(Matrix{x.data(), padded}, nullptr, n, points.dim());
    cells.train(threads);
    cells.neighbours(width, PROBES, threads, [&](uint32_t v, const uint64_t* keys, size_t count) {
        for (size_t j = 0; j < std::min(count, width); ++j) lists[v * width + j] = key_id(keys[j]);
    });
    return lists;
}

}  // namespace

// Long edges: vertices that stand for all others are offered each other, and then those that stand for these, until few
// are left. Where classes lie apart, the lists stay inside a class, and the graph without such edges falls into islands.
void Fanng::bridge(int threads) {
    Ids vertex(points_.size()), lists;
    std::iota(vertex.begin(), vertex.end(), 0u);
    Near near{lists_.data(), list_width_};
    for (uint64_t level = 0; vertex.size() > TOP; ++level) {
        const Ids chosen = with_space(points_, [&](auto space) { return standing_for_all(space, vertex, near, settings_.seed + level); });
        if (chosen.size() * 4 > vertex.size() * 3) return;  // hardly fewer: the lists do not tell who is near
        Ids coarse;
        for (const uint32_t i : chosen) coarse.push_back(vertex[i]);
        vertex = std::move(coarse);
        const size_t width = std::min(WIDTH, std::max<size_t>(vertex.size(), 2) - 1);
        lists = lists_among(points_, vertex, width, threads);
        near = Near{lists.data(), width};
        parallel(vertex.size(), 64, threads, [&](size_t begin, size_t end, int) {
            with_space(points_, [&](auto space) {
                Ids offered;
                for (size_t i = begin; i < end; ++i) {
                    offered.clear();
                    for (size_t j = 0; j < width && near.of(i)[j] != NONE; ++j) offered.push_back(vertex[near.of(i)[j]]);
                    relink(space, vertex[i], offered, graph_.capacity());
                }
            });
        });
    }
}

}  // namespace nngk
