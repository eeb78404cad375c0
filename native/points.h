// The indexed vectors: as given (float32, bfloat16 or float16) for final distances, and as bytes for walking the graph.
#pragma once

#include "contents.h"
#include "kernels.h"
#include "memory.h"
#include "tree.h"

#include <cstring>
#include <vector>

namespace nngk {

// An array that is either ours or a part of a file's contents in memory (writing to it never reaches the file).
template <class T>
class Buffer {
public:
    T* data() { return view_ ? view_ : own_.data(); }
    const T* data() const { return view_ ? view_ : own_.data(); }
    size_t size() const { return view_ ? viewed_ : own_.size(); }
    bool empty() const { return size() == 0; }
    T& operator[](size_t i) { return data()[i]; }
    const T& operator[](size_t i) const { return data()[i]; }
    void resize(size_t n) { take(), own_.resize(n); }
    void assign(size_t n, T value) { forget(), own_.assign(n, value); }
    void view(T* at, size_t n) { own_ = {}, view_ = at, viewed_ = n; }
    void swap(Array<T>& other) { forget(), own_.swap(other); }

private:
    void forget() { view_ = nullptr, viewed_ = 0; }
    void take() {
        if (view_) own_.assign(view_, view_ + viewed_);
        forget();
    }
    Array<T> own_;
    T* view_ = nullptr;
    size_t viewed_ = 0;
};

enum class Storage : uint32_t { f32 = 0, bf16 = 1, f16 = 2 };

class Points {
public:
    Points(size_t dim, Storage storage) : dim_(dim), padded_(rounded(dim, PAD)), storage_(storage) {}

    size_t dim() const { return dim_; }
    size_t padded() const { return padded_; }
    Storage storage() const { return storage_; }
    size_t size() const { return n_; }
    void resize(size_t n);
    void set(size_t i, const float* x);  // dim values
    void get(size_t i, float* x) const;  // padded values
    // The vectors are not here but in a file's rows, which `get` reads.
    void leave(StoredRows rows) { rows_ = std::move(rows); }
    bool on_disk() const { return rows_.contents != nullptr; }
    const StoredRows& rows() const { return rows_; }
    size_t row_bytes() const { return padded_ * (storage_ == Storage::f32 ? 4 : 2); }
    void widen(const void* row, float* x) const;  // a stored row as padded floats
    // In the new order: point i becomes what was point order[i].
    void reorder(const uint32_t* order, size_t n);

    const float* f32(size_t i) const { return f32_.data() + i * padded_; }
    const uint16_t* half(size_t i) const { return half_.data() + i * padded_; }
    const int8_t* code(size_t i) const { return codes_.data() + i * padded_; }

    // Chooses the range of the byte codes from a sample, and encodes all points. Codes are given up (has_codes is
    // false, and walks use the stored vectors) where their rounding would be large beside the distances to neighbours.
    void fit_codes(int threads);
    void encode(size_t i);
    void drop_codes() { has_codes_ = false, codes_ = {}; }
    bool has_codes() const { return has_codes_; }
    void encode_query(const float* x, int16_t* out) const;  // padded values in, padded values out
    float code_step() const { return step_; }
    float centre(size_t k) const { return centre_[k]; }

    size_t bytes() const { return f32_.size() * 4 + half_.size() * 2 + codes_.size(); }

    // Everything that a file has to hold.
    template <class Visit>
    void visit(Visit&& visit) {
        visit(f32_), visit(half_), visit(codes_), visit(centre_);
    }
    void restore(size_t n, bool has_codes, float step) { n_ = n, has_codes_ = has_codes, step_ = step; }

private:
    size_t dim_, padded_, n_ = 0;
    Storage storage_;
    Buffer<float> f32_;
    Buffer<uint16_t> half_;
    Buffer<int8_t> codes_;
    Buffer<float> centre_;
    bool has_codes_ = false;
    float step_ = 1;
    StoredRows rows_;
};

}  // namespace nngk
