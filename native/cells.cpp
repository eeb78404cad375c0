#include "cells.h"

#include "threads.h"

#include <cmath>
#include <numeric>

namespace nngk {
namespace {

constexpr double FILL = 0.85;      // of the slots hold a point: with room to spare few points miss their nearest cell
constexpr size_t CHUNK = 10 * PANEL; // points whose nearest cells are found at a time
constexpr size_t BLOCK_BYTES = 600 << 10; // of centres that stay in the second-level cache meanwhile
constexpr size_t PER_CELL = 16;    // points of the sample that trains a centre
constexpr int ROUNDS = 4;          // of k-means
constexpr size_t PAIRS = 12;        // of each point of a sample that tell how far to look
constexpr size_t FEW = 5 * PANEL;  // centres that tell how far a point has to look
constexpr size_t CHOICES = 64;     // cells of a point that are put in order, for when the first are full

}  // namespace

Cells::Cells(const Matrix& x, const float* rest, size_t n, size_t dim)
    : x_(x), rest_(rest), n_(n), dim_(dim), padded_(rounded(dim, PAD)), count_(size_t(std::ceil(double(n) / (FILL * PANEL)))),
      origin_(mean_of(x, n, dim)), centres_(count_ * padded_) {
    // Neighbours follow each other in the order of the points, so that every so manyth is a fair choice.
    for (size_t c = 0; c < count_; ++c) std::memcpy(&centres_[c * padded_], x.row(c * n / count_), padded_ * sizeof(float));
    pack_centres();
}

void Cells::pack_centres() {
    packed_centres_.fill(count_, dim_, origin_.data(), nullptr, [&](size_t c) { return &centres_[c * padded_]; });
}

// The nearest of some centres for each of some points, as many as the lists keep.
void Cells::nearest(const uint32_t* ids, size_t n, const Packed& centres, Lists& lists) const {
    thread_local Packed rows;
    rows.fill(n, dim_, origin_.data(), nullptr, [&](size_t i) { return x_.row(ids[i]); });
    const size_t block = std::max<size_t>(1, BLOCK_BYTES / (4 * PANEL * dim_)), panels = centres.panel_count();
    for (size_t b = 0; b < panels; b += block)
        join(Side{&rows, 0, rows.panel_count(), &lists}, Side{&centres, b, std::min(panels, b + block), nullptr}, false, false);
}

void Cells::train(int threads) {
    const size_t m = std::min(n_, PER_CELL * count_);
    std::vector<uint32_t> sample(m), cell_of(m);
    for (size_t i = 0; i < m; ++i) sample[i] = uint32_t(i * n_ / m);
    for (int round = 0; round < ROUNDS; ++round) {
        pack_centres();
        parallel(m, CHUNK, threads, [&](size_t begin, size_t end, int) {
            Lists lists(CHUNK, 1);
            nearest(&sample[begin], end - begin, packed_centres_, lists);
            for (size_t i = 0; i < end - begin; ++i) lists.finish(i), cell_of[begin + i] = key_id(lists.keys(i)[0]);
        });
        move_centres(sample, cell_of, threads);
    }
    pack_centres();
}

// Each centre becomes the mean of its points; one without points stays.
void Cells::move_centres(const std::vector<uint32_t>& sample, const std::vector<uint32_t>& cell_of, int threads) {
    std::vector<uint32_t> start(count_ + 1, 0), members(sample.size());
    for (uint32_t c : cell_of) ++start[c + 1];
    for (size_t c = 0; c < count_; ++c) start[c + 1] += start[c];
    std::vector<uint32_t> at(start.begin(), start.end() - 1);
    for (size_t i = 0; i < sample.size(); ++i) members[at[cell_of[i]]++] = sample[i];
    parallel(count_, 64, threads, [&](size_t begin, size_t end, int) {
        for (size_t c = begin; c < end; ++c) {
            if (start[c] == start[c + 1]) continue;
            float* centre = &centres_[c * padded_];
            std::fill(centre, centre + padded_, 0.0f);
            const float share = 1.0f / float(start[c + 1] - start[c]);
            for (uint32_t i = start[c]; i < start[c + 1]; ++i)
                for (size_t k = 0; k < dim_; ++k) centre[k] += share * x_.row(members[i])[k];
        }
    });
}

size_t Cells::probes_for(const std::vector<uint32_t>& points, const std::vector<uint32_t>& truth, double wanted, int threads) const {
    if (points.empty()) return 1;
    const size_t k = truth.size() / points.size(), step = std::max<size_t>(1, k / PAIRS);
    auto distances = [&](uint32_t v, Array<float>& out) {
        out.resize(rounded(count_, 4));
        for (size_t c = 0; c < count_; c += 4) {
            const float* rows[4];
            for (size_t r = 0; r < 4; ++r) rows[r] = &centres_[std::min(c + r, count_ - 1) * padded_];
            kernels().f32(x_.row(v), rows, padded_, &out[c]);
        }
        out.resize(count_);
    };
    auto first = [](const Array<float>& d) { return size_t(std::min_element(d.begin(), d.end()) - d.begin()); };
    auto rank = [](const Array<float>& d, size_t cell) {
        return size_t(std::count_if(d.begin(), d.end(), [&](float other) { return other < d[cell]; }));
    };
    std::vector<std::vector<size_t>> found(points.size());
    // A pair is compared if either point looks at the other's cell.
    parallel(points.size(), 1, threads, [&](size_t i, size_t, int) {
        Array<float> mine, theirs;
        distances(points[i], mine);
        const size_t own = cell_of_.empty() ? first(mine) : cell_of_[points[i]];
        for (size_t j = i % step; j < k; j += step) {
            if (truth[i * k + j] == NONE) continue;
            distances(truth[i * k + j], theirs);
            const size_t other = cell_of_.empty() ? first(theirs) : cell_of_[truth[i * k + j]];
            found[i].push_back(std::min(rank(mine, other), rank(theirs, own)));
        }
    });
    std::vector<size_t> ranks;
    for (const auto& some : found) ranks.insert(ranks.end(), some.begin(), some.end());
    if (ranks.empty()) return 1;
    const size_t at = std::min(ranks.size() - 1, size_t(std::ceil(wanted * double(ranks.size()))));
    std::nth_element(ranks.begin(), ranks.begin() + long(at), ranks.end());
    return std::min(count_, ranks[at] + 1);
}

// The cells at which each point looks, and its distance to the first of them.
void Cells::look(size_t probes, int threads) {
    probed_.resize(n_ * probes), probes_each_ = probes;
    nearest_.resize(n_);
    // Some centres tell how far a point has to look, so that its list does not fill with cells to be dropped again.
    Packed few;
    const size_t m = std::min(count_, FEW), rank = std::min(m, probes * m / count_ * 3 / 2 + 4);
    few.fill(m, dim_, origin_.data(), nullptr, [&](size_t i) { return &centres_[i * count_ / m * padded_]; });
    parallel(n_, CHUNK, threads, [&](size_t begin, size_t end, int) {
        Lists first(CHUNK, rank), lists(CHUNK, probes);
        std::vector<uint32_t> ids(end - begin);
        std::iota(ids.begin(), ids.end(), uint32_t(begin));
        nearest(ids.data(), ids.size(), few, first);
        for (size_t i = 0; i < ids.size(); ++i) {
            first.finish(i), lists.clear(i);
            if (rank < m) lists.start_at(i, first.cut(i));
        }
        nearest(ids.data(), ids.size(), packed_centres_, lists);
        for (size_t i = begin; i < end; ++i) {
            uint64_t* keys = lists.keys(i - begin);
            const size_t found = lists.count(i - begin), some = std::min(found, probes);
            std::nth_element(keys, keys + some - 1, keys + found);
            std::partial_sort(keys, keys + std::min(some, CHOICES), keys + some);
            nearest_[i] = key_score(keys[0]);
            for (size_t j = 0; j < probes; ++j) probed_[i * probes + j] = j < some ? key_id(keys[j]) : NONE;
        }
    });
}

void Cells::settle(size_t probes, int threads) {
    look(std::min(std::max(probes, CHOICES), count_), threads);
    place();
}

// Packs the points cell by cell, and notes which cells are to be compared.
void Cells::fill(size_t probes, int threads) {
    if (cell_of_.empty()) settle(probes, threads);
    if (probes > probes_each_) look(probes, threads);
    packed_.reset(count_ * PANEL, dim_, slots_.data());
    parallel(count_, 16, threads, [&](size_t begin, size_t end, int) {
        for (size_t c = begin; c < end; ++c) {
            const size_t count = size_t(__builtin_popcountll(full_[c]));
            packed_.fill_panel(c, origin_.data(), [&](size_t slot) { return x_.row(slots_[slot]); }, count);
            for (size_t s = c * PANEL; rest_ && s < c * PANEL + count; ++s) packed_.lengthen(s, rest_[slots_[s]]);
        }
    });
    note_probes(probes, threads);
    probed_ = {};
    look_back();
}

// Those nearest to a centre choose first; whoever finds a cell full goes to the next of its own.
void Cells::place() {
    cell_of_.resize(n_);
    slots_.assign(count_ * PANEL, NONE);
    full_.assign(count_, 0);
    std::vector<uint32_t> order(n_);
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
        return nearest_[a] != nearest_[b] ? nearest_[a] < nearest_[b] : a < b;
    });
    const uint64_t all = (uint64_t(1) << PANEL) - 1;
    size_t any = 0;  // the first cell that may have room for those who find none
    for (uint32_t v : order) {
        const uint32_t* mine = &probed_[size_t(v) * probes_each_];
        size_t cell = NONE;
        for (size_t j = 0; j < probes_each_ && mine[j] != NONE && cell == NONE; ++j)
            if (full_[mine[j]] != all) cell = mine[j];
        if (cell == NONE) {
            while (full_[any] == all) ++any;
            cell = any;
        }
        const size_t slot = size_t(__builtin_popcountll(full_[cell]));
        slots_[cell * PANEL + slot] = v, cell_of_[v] = uint32_t(cell);
        full_[cell] |= uint64_t(1) << slot;
    }
}

void Cells::note_probes(size_t probes, int threads) {
    probes_.assign(count_, {});
    parallel(count_, 64, threads, [&](size_t begin, size_t end, int) {
        std::vector<uint64_t> who(count_, 0);
        std::vector<uint32_t> met;
        for (size_t c = begin; c < end; ++c) {
            met.clear();
            for (size_t s = 0; s < PANEL && slots_[c * PANEL + s] != NONE; ++s) {
                const uint32_t* mine = &probed_[size_t(slots_[c * PANEL + s]) * probes_each_];
                for (size_t j = 0; j < probes && mine[j] != NONE; ++j) {
                    if (!who[mine[j]]) met.push_back(mine[j]);
                    who[mine[j]] |= uint64_t(1) << s;
                }
            }
            std::sort(met.begin(), met.end());
            probes_[c].reserve(met.size());
            for (uint32_t cell : met) probes_[c].push_back({cell, who[cell]}), who[cell] = 0;
        }
    });
}

void Cells::look_back() {
    looked_at_.assign(count_, {});
    for (uint32_t a = 0; a < count_; ++a)
        for (const Probe& probe : probes_[a]) looked_at_[probe.cell].push_back({a, probe.points});  // by increasing cell
}

}  // namespace nngk
