// A binary tree of cuts between pairs of points. Its leaves hold points that lie close together: an order of the points
// in which neighbours are near in memory, sets worth comparing exhaustively, and a way for a query to find a start.
#pragma once

#include "memory.h"

#include <cstdint>
#include <vector>

namespace nngk {

// Where vectors lie: a base address and a stride in floats.
struct Matrix {
    const float* data;
    size_t stride;
    const float* row(size_t i) const { return data + i * stride; }
};

struct TreeNode {
    uint32_t a, b;        // the points between which the node cuts
    float offset;         // a point x goes left if |x - a|² - |x - b|² < offset
    uint32_t left, right; // children, or for a leaf (a is NONE) the range [left, right) of the order
};

struct Tree {
    std::vector<TreeNode> nodes;  // the root is first
    Array<uint32_t> order;        // the points, leaf by leaf
    std::vector<uint32_t> coarse; // bounds in the order of the largest subtrees with at most `coarse_size` points

    // dim must be a multiple of PAD. The result depends on the seed, not on the threads.
    void build(const Matrix& x, size_t n, size_t dim, size_t leaf_size, size_t coarse_size, uint64_t seed, int threads);
};

}  // namespace nngk
