#include "lists.h"

#include "threads.h"

#include <mutex>

namespace nngk {
namespace {

// A block of packed columns stays in the second-level cache while a block of rows streams past it.
constexpr size_t BLOCK_BYTES = 700 << 10;
constexpr float NEVER = std::numeric_limits<float>::infinity();

// The cuts of a side's rows, copied so that the tile kernel finds them in a row. They may lag behind the lists: a
// stale cut is too low, and lets in a candidate that the list will drop.
void load_cuts(const Side& side, Array<float>& cuts) {
    const size_t first = side.begin * PANEL, last = side.end * PANEL;
    cuts.resize(last - first);
    for (size_t i = first; i < last; ++i)
        cuts[i - first] = side.lists && i < side.packed->size() ? side.lists->cut(side.packed->id(i)) : NEVER;
}

struct Joiner {
    const Side &a, &b;
    bool same, locked;
    Array<float>& a_cuts;
    Array<float>& b_cuts;

    void give(const Side& to, Array<float>& cuts, size_t row, float value, uint32_t id) {
        const size_t list = to.packed->id(row);
        if (locked)
            to.lists->add_locked(list, value, id);
        else
            to.lists->add(list, value, id);
        cuts[row - to.begin * PANEL] = to.lists->cut(list);
    }

    void take_hits(const Tile& t, size_t row, size_t col) {
        for (size_t r = 0; r < TILE_ROWS; ++r) {
            const size_t i = row + r;
            uint64_t rows = t.row_hits[r], cols = t.col_hits[r];
            if (same && col <= i) {  // the half of a panel below the diagonal belongs to other tiles
                const uint64_t kept = i - col >= 63 ? 0 : ~uint64_t(0) << (i - col + 1);
                rows &= kept, cols &= kept;
            }
            for (uint64_t hits = rows | cols; hits; hits &= hits - 1) {
                const size_t j = size_t(__builtin_ctzll(hits));
                const uint32_t one = a.packed->id(i), two = b.packed->id(col + j);
                const float value = t.c[r * PANEL + j];
                if (rows >> j & 1) give(a, a_cuts, i, value, two);
                if (cols >> j & 1) give(b, same ? a_cuts : b_cuts, col + j, value, one);
            }
        }
    }

    void run() {
        const size_t dim = a.packed->dim();
        thread_local Array<float> strip;
        strip.resize(dim * TILE_ROWS);
        alignas(64) float c[TILE_ROWS * PANEL];
        uint64_t row_hits[TILE_ROWS], col_hits[TILE_ROWS];
        for (size_t row = a.begin * PANEL; row < std::min(a.end * PANEL, a.packed->size()); row += TILE_ROWS) {
            const float* from = a.packed->panel(row / PANEL) + row % PANEL;
            for (size_t k = 0; k < dim; ++k) std::memcpy(&strip[k * TILE_ROWS], from + k * PANEL, TILE_ROWS * 4);
            for (size_t p = same ? row / PANEL : b.begin; p < b.end; ++p) {
                const size_t col = p * PANEL;
                const float* cuts = (same ? a_cuts : b_cuts).data() + (col - b.begin * PANEL);
                const Tile t{strip.data(), b.packed->panel(p), dim, a.packed->init() + row, b.packed->init() + col,
                             a_cuts.data() + (row - a.begin * PANEL), cuts, c, row_hits, col_hits};
                if (kernels().tile(t)) take_hits(t, row, col);
            }
        }
    }
};

}  // namespace

void join(const Side& a, const Side& b, bool same, bool locked) {
    thread_local Array<float> a_cuts, b_cuts;
    load_cuts(a, a_cuts);
    if (!same) load_cuts(b, b_cuts);
    Joiner{a, b, same, locked, a_cuts, b_cuts}.run();
}

size_t block_panels(size_t dim) {
    return std::clamp<size_t>(BLOCK_BYTES / (4 * PANEL * std::max<size_t>(1, dim)), 1, 24);
}

void join_all(const Packed& packed, Lists& lists, int threads) {
    size_t width = block_panels(packed.dim());
    while (width > 1 && packed.panel_count() / width < size_t(8 * threads)) width = (width + 1) / 2;
    const size_t blocks = (packed.panel_count() + width - 1) / width;
    // Two tasks may share a block: hence the mutexes.
    std::vector<std::mutex> busy(blocks);
    parallel(blocks * blocks, 1, threads, [&](size_t task, size_t, int) {
        const size_t i = task % blocks, j = i + task / blocks;
        if (j >= blocks) return;
        std::lock_guard<std::mutex> one(busy[i]);
        std::unique_lock<std::mutex> two(busy[j], std::defer_lock);
        if (i != j) two.lock();
        auto side = [&](size_t b) { return Side{&packed, b * width, std::min((b + 1) * width, packed.panel_count()), &lists}; };
        join(side(i), side(j), i == j, false);
    });
}

}  // namespace nngk
