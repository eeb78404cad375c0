// Neighbour lists of all points from matrix products. The points are parted into cells, each as large as one panel of
// the product, and every point is compared with all points of the cells whose centres are nearest to it. A distance in
// a product costs a tenth of one whose vector is fetched alone, so that looking at too many is cheaper than looking well.
#pragma once

#include "lists.h"
#include "reduced.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace nngk {

class Cells {
public:
    // The first centres are points. `rest` (n) or null: what is to be added to a point's squared distances. Both must
    // outlive the cells. The result does not depend on the threads.
    Cells(const Matrix& x, const float* rest, size_t n, size_t dim);
    // Moves the centres to where points are dense.
    void train(int threads);

    size_t count() const { return count_; }
    // How many cells a point must look at so that the lists hold the share `wanted` of the given true neighbours
    // (points, k), NONE where there are none.
    size_t probes_for(const std::vector<uint32_t>& points, const std::vector<uint32_t>& truth, double wanted, int threads) const;
    // Puts the points into cells. Where a cell is full, a point goes to its next one, so that probes_for says more than before.
    void settle(size_t probes, int threads);
    // The `keep` nearest found for every point, itself left out: take(point, keys, count) with the keys in order.
    using Take = std::function<void(uint32_t, const uint64_t*, size_t)>;
    void neighbours(size_t keep, size_t probes, int threads, const Take& take);

private:
    void move_centres(const std::vector<uint32_t>& sample, const std::vector<uint32_t>& cell_of, int threads);
    void pack_centres();
    void nearest(const uint32_t* ids, size_t n, const Packed& centres, Lists& lists) const;
    void look(size_t probes, int threads);
    void fill(size_t probes, int threads);
    void place();
    void note_probes(size_t probes, int threads);
    void look_back();

    struct Probe {
        uint32_t cell;   // that some points of a cell look at, or whose points look at it
        uint64_t points; // which of them, by their slots
    };

    struct Pair {
        uint32_t b, a;            // cells
        uint64_t from_a, from_b;  // the points of each that look at the other
    };

    std::vector<Pair> pairs_of(uint32_t a) const;
    void join_cells(size_t begin, size_t end, Lists& lists) const;
    void join_pair(const Pair& pair, size_t first, Lists& lists) const;
    void compare(size_t a, uint64_t rows, size_t b, size_t first, Lists& lists) const;
    void offer(size_t b, uint64_t rows, size_t a, uint64_t columns, size_t first, Lists& lists) const;

    Matrix x_;
    const float* rest_;
    size_t n_, dim_, padded_, count_;
    Array<float> origin_, centres_;
    Packed packed_centres_, packed_;
    Array<uint32_t> probed_;      // (n, probes_each_) cells at which each point looks, NONE at the end
    size_t probes_each_ = 0;
    std::vector<float> nearest_;  // score of each point's nearest centre
    std::vector<uint32_t> cell_of_; // of each point, once it has found room
    Array<uint32_t> slots_;       // (cells, PANEL) points, NONE where a cell is not full
    std::vector<uint64_t> full_;  // of each cell, the slots that hold a point
    std::vector<std::vector<Probe>> probes_, looked_at_;  // of each cell, by increasing cell
};

}  // namespace nngk
