// Comparing the points of cells that look at each other.
#include "cells.h"

#include "threads.h"

namespace nngk {
namespace {

constexpr size_t BLOCK_BYTES = 600 << 10; // of a block of cells, which stays in the second-level cache
constexpr size_t CLOSE = 48;       // probes between two cells from which on they are compared first

}  // namespace

// Cells that look at each other with most of their points come first: then the cuts fall at once, and nearly all later
// products are discarded by the kernel. Near cells have near numbers and look at the same cells: a block of them shares
// each panel that comes from memory.
void Cells::join_all(Lists& lists, int threads) const {
    const size_t block = std::clamp<size_t>(BLOCK_BYTES / (4 * PANEL * dim_), 4, 48);
    for (const bool close : {true, false})
        parallel(count_, block, threads, [&](size_t begin, size_t end, int) {
            std::vector<Pair> pairs;
            for (size_t a = begin; a < end; ++a) {
                if (close) compare(a, full_[a], a, full_[a], lists, threads > 1);
                for (const Pair& p : pairs_[a]) {
                    const size_t looks = size_t(__builtin_popcountll(p.from_a) + __builtin_popcountll(p.from_b));
                    if ((looks >= CLOSE) == close) pairs.push_back(p);
                }
            }
            std::sort(pairs.begin(), pairs.end(), [](const Pair& p, const Pair& q) { return p.b != q.b ? p.b < q.b : p.a < q.a; });
            for (const Pair& p : pairs) join_pair(p.a, p.from_a, p.b, p.from_b, lists, threads > 1);
        });
}

// Every pair once: those who look with all of the other cell, or everybody with everybody where that costs no more.
void Cells::join_pair(size_t a, uint64_t from_a, size_t b, uint64_t from_b, Lists& lists, bool locked) const {
    auto strips = [](uint64_t points) { return (size_t(__builtin_popcountll(points)) + TILE_ROWS - 1) / TILE_ROWS; };
    const size_t apart = strips(from_a) + strips(from_b);
    if (apart >= strips(full_[a])) return compare(a, full_[a], b, full_[b], lists, locked);
    if (apart >= strips(full_[b])) return compare(b, full_[b], a, full_[a], lists, locked);
    if (from_a) compare(a, from_a, b, full_[b], lists, locked);
    if (from_b) compare(b, from_b, a, full_[a] & ~from_a, lists, locked);
}

// Some points of cell a with some of cell b, into the lists of both. Lists go by slots.
void Cells::compare(size_t a, uint64_t rows, size_t b, uint64_t columns, Lists& lists, bool locked) const {
    thread_local Array<float> strip;
    strip.resize(dim_ * TILE_ROWS);
    alignas(64) float c[TILE_ROWS * PANEL], b_cut[PANEL];
    float a_init[TILE_ROWS], a_cut[TILE_ROWS];
    uint64_t row_hits[TILE_ROWS], col_hits[TILE_ROWS];
    const size_t a_first = a * PANEL, b_first = b * PANEL;
    for (size_t j = 0; j < PANEL; ++j) b_cut[j] = lists.cut(b_first + j);
    auto give = [&](size_t slot, float value, uint32_t other) {
        if (locked)
            lists.add_locked(slot, value, other);
        else
            lists.add(slot, value, other);
        return lists.cut(slot);
    };
    while (rows) {
        uint32_t at[TILE_ROWS];
        size_t count = 0;
        for (; rows && count < TILE_ROWS; rows &= rows - 1) at[count++] = uint32_t(__builtin_ctzll(rows));
        for (size_t r = count; r < TILE_ROWS; ++r) at[r] = at[0];
        kernels().strip(packed_.panel(a), dim_, at, strip.data());
        for (size_t r = 0; r < TILE_ROWS; ++r) a_init[r] = packed_.init()[a_first + at[r]], a_cut[r] = lists.cut(a_first + at[r]);
        const Tile tile{strip.data(), packed_.panel(b), dim_, a_init, packed_.init() + b_first, a_cut, b_cut, c, row_hits, col_hits};
        if (!kernels().tile(tile)) continue;
        for (size_t r = 0; r < count; ++r) {
            // Within a cell every pair once: with those of higher slots.
            const uint64_t seen = a == b ? columns & ~((uint64_t(2) << at[r]) - 1) : columns;
            for (uint64_t hits = (row_hits[r] | col_hits[r]) & seen; hits; hits &= hits - 1) {
                const size_t j = size_t(__builtin_ctzll(hits));
                const float value = c[r * PANEL + j];
                if (row_hits[r] >> j & 1) give(a_first + at[r], value, slots_[b_first + j]);
                if (col_hits[r] >> j & 1) b_cut[j] = give(b_first + j, value, slots_[a_first + at[r]]);
            }
        }
    }
}

}  // namespace nngk
