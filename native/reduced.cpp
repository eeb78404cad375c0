#include "reduced.h"

#include "lists.h"
#include "threads.h"

#include <cmath>
#include <random>

namespace nngk {
namespace {

constexpr size_t SAMPLE = 4096;
constexpr size_t MEAN_OF = 10000;
constexpr int ROUNDS = 3;

// In sixteen sums, which a compiler takes at once.
float dot_of(const float* a, const float* b, size_t dim) {
    float sums[16] = {}, total = 0;
    size_t k = 0;
    for (; k + 16 <= dim; k += 16)
        for (size_t r = 0; r < 16; ++r) sums[r] += a[k + r] * b[k + r];
    for (; k < dim; ++k) total += a[k] * b[k];
    for (const float sum : sums) total += sum;
    return total;
}

// Gram-Schmidt, twice over: once loses orthogonality in float. Rows that vanish become zero.
void orthonormalise(Array<float>& q, size_t rows, size_t dim, size_t stride) {
    for (size_t i = 0; i < rows; ++i) {
        float* a = &q[i * stride];
        for (int pass = 0; pass < 2; ++pass) {
            for (size_t j = 0; j < i; ++j) {
                const float* b = &q[j * stride];
                const float dot = dot_of(a, b, dim);
                for (size_t k = 0; k < dim; ++k) a[k] -= dot * b[k];
            }
            double norm = 0;
            for (size_t k = 0; k < dim; ++k) norm += double(a[k]) * double(a[k]);
            const float scale = norm > 1e-30 ? float(1 / std::sqrt(norm)) : 0.0f;
            for (size_t k = 0; k < dim; ++k) a[k] *= scale;
        }
    }
}

}  // namespace

void products(const Matrix& a, size_t n, const Matrix& b, size_t m, size_t dim, float* out, size_t stride, int threads) {
    Packed packed;
    packed.fill(m, dim, nullptr, nullptr, [&](size_t j) { return b.row(j); });
    parallel(n, 64, threads, [&](size_t begin, size_t end, int) {
        Array<float> strip(dim * TILE_ROWS);
        alignas(64) float c[TILE_ROWS * PANEL];
        const float zero[PANEL] = {};
        float never[PANEL], always[TILE_ROWS];
        std::fill(never, never + PANEL, std::numeric_limits<float>::infinity());
        std::fill(always, always + TILE_ROWS, -std::numeric_limits<float>::infinity());
        uint64_t hits[2 * TILE_ROWS];
        for (size_t i = begin; i < end; i += TILE_ROWS) {
            const size_t count = std::min(TILE_ROWS, end - i);
            for (size_t r = 0; r < TILE_ROWS; ++r)
                for (size_t k = 0; k < dim; ++k) strip[k * TILE_ROWS + r] = a.row(i + std::min(r, count - 1))[k];
            for (size_t p = 0; p < packed.panel_count(); ++p) {
                kernels().tile(Tile{strip.data(), packed.panel(p), dim, zero, zero, always, never, c, hits, hits + TILE_ROWS});
                const size_t width = std::min(PANEL, m - p * PANEL);
                for (size_t r = 0; r < count; ++r) std::memcpy(out + (i + r) * stride + p * PANEL, c + r * PANEL, width * sizeof(float));
            }
        }
    });
}

Array<float> mean_of(const Matrix& x, size_t n, size_t dim) {
    const size_t step = std::max<size_t>(1, n / MEAN_OF), count = (n + step - 1) / step;
    std::vector<double> sum(dim, 0.0);
    for (size_t i = 0; i < n; i += step)
        for (size_t k = 0; k < dim; ++k) sum[k] += double(x.row(i)[k]);
    Array<float> mean(dim);
    for (size_t k = 0; k < dim; ++k) mean[k] = float(sum[k] / double(count));
    return mean;
}

Reduced reduced(const Matrix& x, size_t n, size_t dim, size_t kept, uint64_t seed, int threads) {
    const size_t m = std::min(n, SAMPLE);
    std::vector<double> sum(dim, 0.0);
    for (size_t i = 0; i < m; ++i)
        for (size_t k = 0; k < dim; ++k) sum[k] += double(x.row(i * n / m)[k]);
    Array<float> mean(dim), sample(m * dim), turned(m * dim);
    for (size_t k = 0; k < dim; ++k) mean[k] = float(sum[k] / double(m));
    for (size_t i = 0; i < m; ++i)
        for (size_t k = 0; k < dim; ++k) turned[k * m + i] = sample[i * dim + k] = x.row(i * n / m)[k] - mean[k];
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    Array<float> basis(kept * dim), along(m * kept), across(m * kept);
    for (float& value : basis) value = normal(random);
    for (int round = 0; round < ROUNDS; ++round) {
        orthonormalise(basis, kept, dim, dim);
        products(Matrix{sample.data(), dim}, m, Matrix{basis.data(), dim}, kept, dim, along.data(), kept, threads);
        for (size_t i = 0; i < m; ++i)
            for (size_t j = 0; j < kept; ++j) across[j * m + i] = along[i * kept + j];
        products(Matrix{across.data(), m}, kept, Matrix{turned.data(), m}, dim, m, basis.data(), dim, threads);
    }
    orthonormalise(basis, kept, dim, dim);
    Reduced out;
    out.dim = kept, out.padded = rounded(kept, PAD);
    out.rows.assign(n * out.padded, 0.0f), out.rest.resize(n);
    products(x, n, Matrix{basis.data(), dim}, kept, dim, out.rows.data(), out.padded, threads);
    Array<float> shift(out.padded);
    products(Matrix{mean.data(), dim}, 1, Matrix{basis.data(), dim}, kept, dim, shift.data(), out.padded, 1);
    parallel(n, 1024, threads, [&](size_t begin, size_t end, int) {
        for (size_t i = begin; i < end; ++i) {
            float whole = 0, part = 0;
            for (size_t k = 0; k < dim; ++k) whole += (x.row(i)[k] - mean[k]) * (x.row(i)[k] - mean[k]);
            float* row = &out.rows[i * out.padded];
            for (size_t k = 0; k < kept; ++k) row[k] -= shift[k], part += row[k] * row[k];
            out.rest[i] = std::max(0.0f, whole - part);
        }
    });
    return out;
}

void Reduced::estimate(size_t i, size_t n, float* out) const {
    for (size_t j = 0; j < n; j += 4) {
        const float* at[4];
        float d[4];
        for (size_t r = 0; r < 4; ++r) at[r] = &rows[std::min(j + r, n - 1) * padded];
        kernels().f32(&rows[i * padded], at, padded, d);
        for (size_t r = 0; r < 4 && j + r < n; ++r) out[j + r] = d[r] + rest[i] + rest[j + r];
    }
}

}  // namespace nngk
