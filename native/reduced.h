// Points in fewer dimensions: along the directions in which they vary most.
#pragma once

#include "tree.h"

namespace nngk {

// out[i * stride + j] = a_i · b_j for n rows of a and m rows of b.
void products(const Matrix& a, size_t n, const Matrix& b, size_t m, size_t dim, float* out, size_t stride, int threads);

// Of up to ten thousand points, evenly taken.
Array<float> mean_of(const Matrix& x, size_t n, size_t dim);

struct Reduced {
    size_t dim = 0, padded = 0;
    Array<float> rows;   // (n, padded)
    Array<float> rest;   // (n) the squared length that the dropped directions held

    Matrix matrix() const { return Matrix{rows.data(), padded}; }
    // |x - y|² as the kept directions tell it: of the dropped ones the lengths are known, and not the angle, which
    // between many directions is nearly always a right one.
    void estimate(size_t i, size_t n, float* out) const;
};

// The first `kept` directions are found by a few rounds of subspace iteration on a sample.
Reduced reduced(const Matrix& x, size_t n, size_t dim, size_t kept, uint64_t seed, int threads);

}  // namespace nngk
