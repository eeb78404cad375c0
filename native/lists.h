// The nearest candidates of many points at once, filled by tiles of a matrix product.
#pragma once

#include "kernels.h"
#include "memory.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>

namespace nngk {

// A candidate is one integer, score above index, so that ordering by it breaks ties by index.
inline uint64_t make_key(float score, uint32_t id) {
    uint32_t bits;
    std::memcpy(&bits, &score, 4);
    bits ^= (bits >> 31) ? 0xffffffffu : 0x80000000u;
    return uint64_t(bits) << 32 | id;
}
inline float key_score(uint64_t key) {
    uint32_t bits = uint32_t(key >> 32);
    bits ^= (bits >> 31) ? 0x80000000u : 0xffffffffu;
    float score;
    std::memcpy(&score, &bits, 4);
    return score;
}
inline uint32_t key_id(uint64_t key) { return uint32_t(key); }

// For each of n points the `keep` best candidates seen. Candidates go to a buffer until it is full; then the best are
// kept and the worst of them becomes the cut that later ones must reach. What remains at the end depends on the
// candidates alone, not on their order, and so not on the threads.
class Lists {
public:
    // The same candidate must not come twice.
    Lists(size_t n, size_t keep)
        : keep_(keep), capacity_(capacity(keep)), keys_(n * capacity_), counts_(n, 0u),
          cuts_(new std::atomic<float>[n]), locks_(new std::atomic<bool>[n]) {
        for (size_t i = 0; i < n; ++i) {
            cuts_[i].store(-std::numeric_limits<float>::max(), std::memory_order_relaxed);
            locks_[i].store(false, std::memory_order_relaxed);
        }
    }

    // of one point, while the best of all are found.
    static size_t bytes(size_t keep) { return capacity(keep) * sizeof(uint64_t); }

    size_t size() const { return counts_.size(); }
    size_t keep() const { return keep_; }
    size_t count(size_t i) const { return counts_[i]; }
    uint64_t* keys(size_t i) { return keys_.data() + i * capacity_; }
    const uint64_t* keys(size_t i) const { return keys_.data() + i * capacity_; }
    float cut(size_t i) const { return cuts_[i].load(std::memory_order_relaxed); }

    // value = -(squared distance)/2, as the tiles give it.
    void add(size_t i, float value, uint32_t id) { add_key(i, make_key(-2 * value, id)); }
    void add_key(size_t i, uint64_t key) {
        keys(i)[counts_[i]++] = key;
        if (counts_[i] == capacity_) compact(i);
    }
    void add_locked(size_t i, float value, uint32_t id) {
        while (locks_[i].exchange(true, std::memory_order_acquire)) {}
        add(i, value, id);
        locks_[i].store(false, std::memory_order_release);
    }

    // Sorts a point's list and drops what is beyond `keep`.
    void finish(size_t i) {
        compact(i);
        std::sort(keys(i), keys(i) + counts_[i]);
    }
    void clear(size_t i) {
        counts_[i] = 0;
        cuts_[i].store(-std::numeric_limits<float>::max(), std::memory_order_relaxed);
    }
    // Candidates must reach this value from the start.
    void start_at(size_t i, float cut) { cuts_[i].store(cut, std::memory_order_relaxed); }

private:
    static size_t capacity(size_t keep) { return 2 * keep + 64; }
    void compact(size_t i) {
        if (counts_[i] < keep_) return;
        uint64_t* k = keys(i);
        std::nth_element(k, k + keep_ - 1, k + counts_[i]);
        counts_[i] = uint32_t(keep_);
        cuts_[i].store(-key_score(k[keep_ - 1]) / 2, std::memory_order_relaxed);
    }

    size_t keep_, capacity_;
    Array<uint64_t> keys_;
    std::vector<uint32_t> counts_;
    std::unique_ptr<std::atomic<float>[]> cuts_;
    std::unique_ptr<std::atomic<bool>[]> locks_;
};

// Rows packed into panels of 48 columns for the tile kernel, shifted by a common origin: distances do not change, and
// near the origin the rounding of |a|² + |b|² - 2ab is least.
class Packed {
public:
    // row(i) gives a pointer to dim floats; ids may be null (then a row's id is its number).
    template <class Row>
    void fill(size_t n, size_t dim, const float* origin, const uint32_t* ids, Row&& row) {
        reset(n, dim, ids);
        for (size_t p = 0; p < panel_count(); ++p) fill_panel(p, origin, row);
    }
    void reset(size_t n, size_t dim, const uint32_t* ids) {
        n_ = n, dim_ = dim, ids_ = ids;
        panels_.resize(panel_count() * PANEL * dim);
        init_.resize(panel_count() * PANEL);
    }
    template <class Row>
    void fill_panel(size_t p, const float* origin, Row&& row) {
        fill_panel(p, origin, row, std::min(PANEL, n_ - p * PANEL));
    }
    // A panel with so many rows; the columns beyond are never a hit.
    template <class Row>
    void fill_panel(size_t p, const float* origin, Row&& row, size_t count) {
        const size_t begin = p * PANEL;
        thread_local Array<float> shifted;
        const size_t padded = rounded(dim_, 16);  // the transposition takes sixteen at a time
        shifted.assign(count * padded, 0.0f);
        thread_local Array<float> wide;
        const float* rows[PANEL];
        for (size_t j = 0; j < count; ++j) {
            const float* x = row(begin + j);
            float* out = shifted.data() + j * padded;
            for (size_t k = 0; k < dim_; ++k) out[k] = origin ? x[k] - origin[k] : x[k];
            float norm = 0;
            for (size_t k = 0; k < dim_; ++k) norm += out[k] * out[k];
            init_[begin + j] = -norm / 2;
            rows[j] = out;
        }
        for (size_t j = count; j < PANEL; ++j) init_[begin + j] = -std::numeric_limits<float>::infinity();
        float* panel = panels_.data() + p * PANEL * dim_;
        if (padded == dim_) return kernels().pack(rows, count, dim_, panel);
        wide.resize(padded * PANEL);
        kernels().pack(rows, count, padded, wide.data());
        std::memcpy(panel, wide.data(), dim_ * PANEL * sizeof(float));
    }

    // Adds to a row's squared distances to all others.
    void lengthen(size_t i, float squared) { init_[i] -= squared / 2; }

    size_t size() const { return n_; }
    size_t dim() const { return dim_; }
    size_t panel_count() const { return (n_ + PANEL - 1) / PANEL; }
    const float* panel(size_t p) const { return panels_.data() + p * PANEL * dim_; }
    const float* init() const { return init_.data(); }
    uint32_t id(size_t i) const { return ids_ ? ids_[i] : uint32_t(i); }

private:
    size_t n_ = 0, dim_ = 0;
    const uint32_t* ids_ = nullptr;
    Array<float> panels_, init_;
};

// A run of panels of a packed set, with the lists its rows feed (null: rows are only candidates of the other side).
struct Side {
    const Packed* packed;
    size_t begin, end;  // panels
    Lists* lists;
};

// All pairs of two sides; with `same` each pair of one side once. Hits go to the lists of both.
void join(const Side& a, const Side& b, bool same, bool locked);

// Panels that are compared at a time, so that they stay in the second-level cache.
size_t block_panels(size_t dim);

// All pairs of a packed set. Those of near numbers come first: where these are near points, the cuts fall at once, and
// nearly all later products are discarded by the kernel.
void join_all(const Packed& packed, Lists& lists, int threads);

}  // namespace nngk
