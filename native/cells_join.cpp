// Comparing the points of cells that look at each other.
#include "cells.h"

#include "threads.h"

#include <array>

namespace nngk {
namespace {

constexpr size_t LIST_BYTES = 1 << 20; // of the lists of the cells that are joined at a time: they stay in a core's cache
constexpr size_t CLOSE = 48;       // probes between two cells from which on they are compared first

const auto NEVER = [] {
    std::array<float, PANEL> cuts;
    cuts.fill(std::numeric_limits<float>::infinity());
    return cuts;
}();

size_t strips(uint64_t points) { return (size_t(__builtin_popcountll(points)) + TILE_ROWS - 1) / TILE_ROWS; }

}  // namespace

// A few cells at a time, with all that they look at and all whose points look at them. Two cells that look at each other
// are compared twice, once for the lists of each: those of few cells stay in the cache, and belong to one thread.
void Cells::neighbours(size_t keep, size_t probes, int threads, const Take& take) {
    fill(std::clamp<size_t>(probes, 1, count_), threads);
    const size_t block = std::clamp<size_t>(LIST_BYTES / (Lists::bytes(keep) * PANEL), 1, 16);
    std::vector<std::unique_ptr<Lists>> mine(size_t(std::max(threads, 1)));
    parallel(count_, block, threads, [&](size_t begin, size_t end, int thread) {
        std::unique_ptr<Lists>& lists = mine[size_t(thread)];
        if (!lists) lists = std::make_unique<Lists>(block * PANEL, keep);
        for (size_t i = 0; i < lists->size(); ++i) lists->clear(i);
        join_cells(begin, end, *lists);
        for (size_t s = begin * PANEL; s < end * PANEL; ++s) {
            if (slots_[s] == NONE) continue;
            const size_t i = s - begin * PANEL;
            lists->finish(i);
            take(slots_[s], lists->keys(i), lists->count(i));
        }
    });
}

std::vector<Cells::Pair> Cells::pairs_of(uint32_t a) const {
    std::vector<Pair> pairs;
    auto to = probes_[a].begin(), from = looked_at_[a].begin();
    const auto to_end = probes_[a].end(), from_end = looked_at_[a].end();
    while (to != to_end || from != from_end) {
        const uint32_t b = std::min(to == to_end ? NONE : to->cell, from == from_end ? NONE : from->cell);
        Pair pair{b, a, 0, 0};
        if (to != to_end && to->cell == b) pair.from_a = (to++)->points;
        if (from != from_end && from->cell == b) pair.from_b = (from++)->points;
        if (b != a) pairs.push_back(pair);
    }
    return pairs;
}

// Cells that look at each other with most of their points come first: then the cuts fall at once, and nearly all later
// products are discarded by the kernel. Near cells have near numbers and look at the same cells, of which each panel
// comes from memory once.
void Cells::join_cells(size_t begin, size_t end, Lists& lists) const {
    std::vector<Pair> close, others;
    for (size_t a = begin; a < end; ++a) {
        compare(a, full_[a], a, begin, lists);
        for (const Pair& pair : pairs_of(uint32_t(a))) {
            const size_t looks = size_t(__builtin_popcountll(pair.from_a) + __builtin_popcountll(pair.from_b));
            (looks >= CLOSE ? close : others).push_back(pair);
        }
    }
    for (auto* pairs : {&close, &others}) {
        std::sort(pairs->begin(), pairs->end(), [](const Pair& p, const Pair& q) { return p.b != q.b ? p.b < q.b : p.a < q.a; });
        for (const Pair& pair : *pairs) join_pair(pair, begin, lists);
    }
}

// Those of cell a that look with all of cell b, and all of cell a with those of b that look; or everybody with everybody
// where that costs no more. Only the lists of cell a take what is found; they go by slots from the cell `first` on.
void Cells::join_pair(const Pair& pair, size_t first, Lists& lists) const {
    if (strips(pair.from_a) + strips(pair.from_b) >= strips(full_[pair.a])) return compare(pair.a, full_[pair.a], pair.b, first, lists);
    if (pair.from_a) compare(pair.a, pair.from_a, pair.b, first, lists);
    if (pair.from_b) offer(pair.b, pair.from_b, pair.a, full_[pair.a] & ~pair.from_a, first, lists);
}

// Some points of cell a with all of cell b, into the lists of a.
void Cells::compare(size_t a, uint64_t rows, size_t b, size_t first, Lists& lists) const {
    thread_local Array<float> strip;
    strip.resize(dim_ * TILE_ROWS);
    alignas(64) float c[TILE_ROWS * PANEL];
    float a_init[TILE_ROWS], a_cut[TILE_ROWS];
    uint64_t row_hits[TILE_ROWS], col_hits[TILE_ROWS];
    while (rows) {
        uint32_t at[TILE_ROWS];
        size_t count = 0;
        for (; rows && count < TILE_ROWS; rows &= rows - 1) at[count++] = uint32_t(__builtin_ctzll(rows));
        for (size_t r = count; r < TILE_ROWS; ++r) at[r] = at[0];
        kernels().strip(packed_.panel(a), dim_, at, strip.data());
        for (size_t r = 0; r < TILE_ROWS; ++r)
            a_init[r] = packed_.init()[a * PANEL + at[r]], a_cut[r] = lists.cut((a - first) * PANEL + at[r]);
        const Tile tile{strip.data(), packed_.panel(b), dim_, a_init, packed_.init() + b * PANEL, a_cut, NEVER.data(), c, row_hits, col_hits};
        if (!kernels().tile(tile)) continue;
        for (size_t r = 0; r < count; ++r) {
            if (a == b) row_hits[r] &= ~(uint64_t(1) << at[r]);  // not itself
            for (uint64_t hits = row_hits[r] & full_[b]; hits; hits &= hits - 1) {
                const size_t j = size_t(__builtin_ctzll(hits));
                lists.add((a - first) * PANEL + at[r], c[r * PANEL + j], slots_[b * PANEL + j]);
            }
        }
    }
}

// Some points of cell b to some of cell a, into the lists of a.
void Cells::offer(size_t b, uint64_t rows, size_t a, uint64_t columns, size_t first, Lists& lists) const {
    thread_local Array<float> strip;
    strip.resize(dim_ * TILE_ROWS);
    alignas(64) float c[TILE_ROWS * PANEL], cut[PANEL];
    float init[TILE_ROWS];
    uint64_t row_hits[TILE_ROWS], col_hits[TILE_ROWS];
    for (size_t j = 0; j < PANEL; ++j) cut[j] = lists.cut((a - first) * PANEL + j);
    while (rows) {
        uint32_t at[TILE_ROWS];
        size_t count = 0;
        for (; rows && count < TILE_ROWS; rows &= rows - 1) at[count++] = uint32_t(__builtin_ctzll(rows));
        for (size_t r = count; r < TILE_ROWS; ++r) at[r] = at[0];
        kernels().strip(packed_.panel(b), dim_, at, strip.data());
        for (size_t r = 0; r < TILE_ROWS; ++r) init[r] = packed_.init()[b * PANEL + at[r]];
        const Tile tile{strip.data(), packed_.panel(a), dim_, init, packed_.init() + a * PANEL, NEVER.data(), cut, c, row_hits, col_hits};
        if (!kernels().tile(tile)) continue;
        for (size_t r = 0; r < count; ++r)
            for (uint64_t hits = col_hits[r] & columns; hits; hits &= hits - 1) {
                const size_t j = size_t(__builtin_ctzll(hits));
                lists.add((a - first) * PANEL + j, c[r * PANEL + j], slots_[b * PANEL + at[r]]);
                cut[j] = lists.cut((a - first) * PANEL + j);
            }
    }
}

}  // namespace nngk
