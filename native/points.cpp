#include "points.h"

#include "threads.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nngk {
namespace {

constexpr size_t SAMPLE = 2000;
constexpr float BYTE = 127;
constexpr float FINE = 511;  // steps of a query's values: the greatest whose products with bytes fit in 32,768 dimensions
constexpr float LARGEST = std::numeric_limits<float>::max() / 8;  // of squared lengths: sums of them stay finite

// The difference from the centre in steps so that the greatest value becomes `top`.
template <class T>
Points::CodeTerm round_to_steps(const float* x, const float* centre, size_t n, float top, float least, T* out) {
    float greatest = 0;
    for (size_t k = 0; k < n; ++k) greatest = std::max(greatest, std::fabs(x[k] - centre[k]));
    const float step = greatest > 0 ? std::max(greatest / top, std::numeric_limits<float>::min()) : least, scale = 1 / step;
    int64_t square = 0;
    for (size_t k = 0; k < n; ++k) {
        out[k] = T(std::lrintf(std::clamp((x[k] - centre[k]) * scale, -top, top)));
        square += int64_t(out[k]) * out[k];
    }
    return {step, std::min(LARGEST, step * step * float(square))};
}

}  // namespace

void Points::resize(size_t n) {
    if (storage_ == Storage::f32)
        f32_.resize(n * padded_);
    else
        half_.resize(n * padded_);
    if (has_codes_) codes_.resize(n * padded_), centre_.resize(padded_ + 2 * n);
    n_ = n;
}

void Points::set(size_t i, const float* x) {
    if (storage_ == Storage::f32) {
        float* row = f32_.data() + i * padded_;
        std::memcpy(row, x, dim_ * sizeof(float));
        std::fill(row + dim_, row + padded_, 0.0f);
        return;
    }
    uint16_t* row = half_.data() + i * padded_;
    for (size_t k = 0; k < dim_; ++k) row[k] = storage_ == Storage::bf16 ? to_bf16(x[k]) : to_f16(x[k]);
    std::fill(row + dim_, row + padded_, uint16_t(0));
}

void Points::get(size_t i, float* x) const {
    if (storage_ == Storage::f32) {
        std::memcpy(x, f32(i), padded_ * sizeof(float));
        return;
    }
    const uint16_t* row = half(i);
    for (size_t k = 0; k < padded_; ++k) x[k] = storage_ == Storage::bf16 ? from_bf16(row[k]) : from_f16(row[k]);
}

void Points::reorder(const uint32_t* order, size_t n) {
    auto move = [&](auto& buffer) {
        if (buffer.empty()) return;
        using T = std::decay_t<decltype(buffer[0])>;
        Array<T> moved(n * padded_);
        for (size_t i = 0; i < n; ++i)
            std::memcpy(&moved[i * padded_], &buffer[order[i] * padded_], padded_ * sizeof(T));
        buffer.swap(moved);
    };
    move(f32_), move(half_), move(codes_);
    if (has_codes_) {
        Array<float> moved(padded_ + 2 * n);
        std::memcpy(moved.data(), centre_.data(), padded_ * sizeof(float));
        for (size_t i = 0; i < n; ++i) std::memcpy(&moved[padded_ + 2 * i], term_row(order[i]), 2 * sizeof(float));
        centre_.swap(moved);
    }
    n_ = n;
}

void Points::fit_codes(int threads) {
    has_codes_ = false;
    centre_.assign(padded_ + 2 * n_, 0.0f);
    const size_t m = std::min(n_, SAMPLE);
    if (m < 2) return;
    Array<float> sample(m * padded_);
    for (size_t i = 0; i < m; ++i) get(i * n_ / m, &sample[i * padded_]);
    // Medians: a few points far away do not move them.
    std::vector<float> values(m);
    double spread = 0;
    for (size_t k = 0; k < dim_; ++k) {
        for (size_t i = 0; i < m; ++i) values[i] = sample[i * padded_ + k];
        std::nth_element(values.begin(), values.begin() + long(m / 2), values.end());
        centre_[k] = values[m / 2];
        for (float value : values) spread = std::max(spread, std::fabs(double(value) - double(centre_[k])));
    }
    step_ = float(spread / BYTE);
    const double limit = std::sqrt(double(LARGEST) / double(dim_));
    if (!(step_ >= std::numeric_limits<float>::min()) || !(spread < limit)) return;
    codes_.resize(n_ * padded_);
    has_codes_ = true;
    parallel(n_, 1024, threads, [&](size_t begin, size_t end, int) {
        for (size_t i = begin; i < end; ++i) encode(i);
    });
}

void Points::encode(size_t i) {
    thread_local Array<float> x;
    x.resize(padded_);
    get(i, x.data());
    const CodeTerm term = round_to_steps(x.data(), centre_.data(), padded_, BYTE, step_, codes_.data() + i * padded_);
    float* at = centre_.data() + padded_ + 2 * i;
    at[0] = term.step, at[1] = term.square;
}

Points::CodeTerm Points::encode_query(const float* x, int16_t* out) const {
    return round_to_steps(x, centre_.data(), padded_, FINE, step_, out);
}

}  // namespace nngk
