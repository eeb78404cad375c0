#include "points.h"

#include "threads.h"

#include <algorithm>
#include <cmath>

namespace nngk {
namespace {
constexpr size_t SAMPLE = 2000;
}

void Points::resize(size_t n) {
    if (storage_ == Storage::f32)
        f32_.resize(n * padded_);
    else
        half_.resize(n * padded_);
    if (has_codes_) codes_.resize(n * padded_);
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
    if (!on_disk()) return widen(storage_ == Storage::f32 ? static_cast<const void*>(f32(i)) : half(i), x);
    thread_local Array<char> row;
    row.resize(row_bytes());
    rows_.read(i, row.data());
    widen(row.data(), x);
}

void Points::widen(const void* row, float* x) const {
    if (storage_ == Storage::f32) {
        std::memcpy(x, row, padded_ * sizeof(float));
        return;
    }
    const uint16_t* half = static_cast<const uint16_t*>(row);
    for (size_t k = 0; k < padded_; ++k) x[k] = storage_ == Storage::bf16 ? from_bf16(half[k]) : from_f16(half[k]);
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
    n_ = n;
}

void Points::fit_codes(int threads) {
    has_codes_ = false;
    centre_.assign(padded_, 0.0f);
    const size_t m = std::min(n_, SAMPLE);
    if (m < 2) return;
    Array<float> sample(m * padded_);
    for (size_t i = 0; i < m; ++i) get(i * n_ / m, &sample[i * padded_]);
    for (size_t i = 0; i < m; ++i)
        for (size_t k = 0; k < dim_; ++k) centre_[k] += sample[i * padded_ + k] / float(m);
    std::vector<float> spread;
    spread.reserve(m * dim_);
    for (size_t i = 0; i < m; ++i)
        for (size_t k = 0; k < dim_; ++k) spread.push_back(std::fabs(sample[i * padded_ + k] - centre_[k]));
    // All but one in ten thousand values fit; the rest are clipped, which only bends the walk a little.
    const size_t at = std::min(spread.size() - 1, spread.size() - spread.size() / 10000);
    std::nth_element(spread.begin(), spread.begin() + long(at), spread.end());
    step_ = spread[at] / 127;
    if (!(step_ > 0) || !std::isfinite(step_)) return;
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
    int8_t* out = codes_.data() + i * padded_;
    const float scale = 1 / step_;
    for (size_t k = 0; k < padded_; ++k)
        out[k] = int8_t(std::lrintf(std::clamp((x[k] - centre_[k]) * scale, -127.0f, 127.0f)));
}

void Points::encode_query(const float* x, int16_t* out) const {
    const float scale = 1 / step_;
    // A query may lie outside the range of the points: the subtraction has room for more, so clip late.
    for (size_t k = 0; k < padded_; ++k)
        out[k] = int16_t(std::lrintf(std::clamp((x[k] - centre_[k]) * scale, -127.0f, 127.0f)));
}

}  // namespace nngk
