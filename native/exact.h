// Exact nearest neighbours: every pair, at the speed of a matrix product.
#pragma once

#include "lists.h"

namespace nngk {

// Squared distances from a query to rows of a row-major matrix whose width need not be padded.
class Rows {
public:
    Rows(const float* x, size_t n, size_t dim);
    size_t size() const { return n_; }
    size_t dim() const { return dim_; }
    size_t padded() const { return padded_; }
    const float* row(size_t i) const { return data_ + i * padded_; }

private:
    size_t n_, dim_, padded_;
    const float* data_;
    Array<float> copy_;  // only where the width has to be padded
};

using Scored = std::pair<float, uint32_t>;  // distance, point

class ExactIndex {
public:
    // The matrix must outlive the index.
    ExactIndex(const float* x, size_t n, size_t dim, int threads);
    size_t size() const { return rows_.size(); }
    size_t dim() const { return rows_.dim(); }
    // distances (n, k) and indices (n, k); rows that come short end in infinity and -1.
    void all_neighbours(size_t k, int threads, float* distances, int64_t* indices) const;
    void search(const float* queries, size_t count, size_t k, int threads, float* distances, int64_t* indices) const;

private:
    void product(const Packed& queries, Lists& lists, int threads) const;
    void scan(const Rows& queries, size_t k, int threads, float* distances, int64_t* indices) const;
    // The last query that every point was compared with, and what came of it.
    struct Scan {
        std::vector<float> query;
        std::vector<Scored> best;
    };
    const std::vector<Scored>& look_at_all(const float* query, size_t k, Scan& scan) const;
    void rescore(const float* query, const Lists& lists, size_t i, size_t k, int64_t own, Scan& scan, float* d, int64_t* id) const;

    Rows rows_;
    Array<float> origin_;
    Array<uint32_t> order_;
    Packed packed_;
};

}  // namespace nngk
