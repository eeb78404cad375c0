// Neighbour lists of all points: found anew through cells, or improved from where they are.
#include "cells.h"
#include "costs.h"
#include "exact.h"
#include "fanng.h"
#include "reduced.h"
#include "threads.h"

#include <cmath>
#include <numeric>

namespace nngk {
namespace {

constexpr size_t SAMPLE = 300;     // points whose true neighbours tell how far the others must look
constexpr size_t BLOCK = 24 * PANEL; // points that are packed at a time
constexpr double AGREEMENT = 0.99; // of the true neighbours that fewer dimensions must still find, at the least
constexpr double MARGIN = 0.25;    // of what may be missing, kept back: the sample is a sample, and cells have bounds
constexpr double UNTRAINED = 0.8;  // as many cells are needed once the centres are trained, or even fewer

uint64_t word(uint32_t distance, uint32_t entry) { return uint64_t(distance) << 32 | entry; }

// Who has u among its first `fan` neighbours; at most `fan` of them, evenly taken.
struct Reverse {
    std::vector<uint64_t> start;
    std::vector<uint32_t> entries;

    Reverse(const uint32_t* lists, size_t n, size_t width, size_t fan) : start(n + 1, 0) {
        fan = std::min(fan, width);
        auto each = [&](auto&& visit) {
            for (size_t v = 0; v < n; ++v)
                for (size_t j = 0; j < fan && lists[v * width + j] != NONE; ++j) visit(lists[v * width + j], uint32_t(v));
        };
        each([&](uint32_t u, uint32_t) { ++start[u + 1]; });
        for (size_t v = 0; v < n; ++v) start[v + 1] += start[v];
        entries.resize(start[n]);
        std::vector<uint64_t> at(start.begin(), start.end() - 1);
        each([&](uint32_t u, uint32_t from) { entries[at[u]++] = from; });
    }
    template <class Visit>
    void some(size_t u, size_t most, Visit&& visit) const {
        const uint64_t count = start[u + 1] - start[u];
        for (uint64_t j = 0; j < std::min<uint64_t>(count, most); ++j)
            visit(entries[start[u] + (count <= most ? j : j * count / most)]);
    }
};

// For some points the `keep` nearest of all, themselves left out, by one product. rest: what is added to the squared
// distances of each point, or null.
std::vector<std::vector<uint32_t>> nearest(const std::vector<uint32_t>& some, const Matrix& x, const float* rest, size_t n,
                                           size_t dim, size_t keep, int threads) {
    Packed rows;
    rows.fill(some.size(), dim, x.row(some[0]), nullptr, [&](size_t i) { return x.row(some[i]); });
    Lists lists(some.size(), keep + 1);
    parallel(n, BLOCK, threads, [&](size_t begin, size_t end, int) {
        thread_local Packed block;
        std::vector<uint32_t> ids(end - begin);
        std::iota(ids.begin(), ids.end(), uint32_t(begin));
        block.fill(ids.size(), dim, x.row(some[0]), ids.data(), [&](size_t i) { return x.row(ids[i]); });
        for (size_t i = 0; rest && i < ids.size(); ++i) block.lengthen(i, rest[ids[i]]);
        join(Side{&rows, 0, rows.panel_count(), &lists}, Side{&block, 0, block.panel_count(), nullptr}, false, true);
    });
    std::vector<std::vector<uint32_t>> found(some.size());
    for (size_t i = 0; i < some.size(); ++i) {
        lists.finish(i);
        for (size_t j = 0; j < lists.count(i) && found[i].size() < keep; ++j)
            if (key_id(lists.keys(i)[j]) != some[i]) found[i].push_back(key_id(lists.keys(i)[j]));
    }
    return found;
}

// Some points and their true neighbours (points, k).
struct Truth {
    std::vector<uint32_t> points, near;
    size_t k;

    Truth(const Matrix& x, size_t n, size_t dim, size_t neighbours, int threads)
        : points(std::min(n, SAMPLE)), k(std::min(neighbours, n - 1)) {
        for (size_t i = 0; i < points.size(); ++i) points[i] = uint32_t(i * n / points.size());
        for (const auto& row : nearest(points, x, nullptr, n, dim, k, threads)) near.insert(near.end(), row.begin(), row.end());
    }

    // How many of them are among the `width` nearest in fewer dimensions.
    double share(const Reduced& less, size_t n, size_t width, int threads) const {
        size_t found = 0;
        auto lists = nearest(points, less.matrix(), less.rest.data(), n, less.dim, width, threads);
        for (size_t i = 0; i < points.size(); ++i) {
            std::sort(lists[i].begin(), lists[i].end());
            for (size_t j = 0; j < k; ++j) found += std::binary_search(lists[i].begin(), lists[i].end(), near[i * k + j]);
        }
        return double(found) / double(near.size());
    }
};

// In the fewest dimensions that keep so many of the neighbours among the `width` nearest; dim 0 where none do.
std::pair<Reduced, double> fewest(const Matrix& x, size_t n, size_t dim, const Truth& truth, size_t width, double least,
                                  uint64_t seed, int threads) {
    size_t kept = 32;
    while (kept * 16 <= dim) kept *= 2;
    for (; kept * 4 <= dim * 3; kept *= 2) {
        Reduced less = reduced(x, n, dim, kept, seed, threads);
        const double share = truth.share(less, n, width, threads);
        if (share >= least) return {std::move(less), share};
    }
    return {Reduced{}, 1.0};
}

}  // namespace

// As many neighbours as are kept for k of them, so that the share `wanted` of the k nearest is among them.
void Fanng::find_lists(size_t k, double wanted, int threads) {
    const size_t n = points_.size(), padded = points_.padded(), width = kept_width(k);
    Array<float> copy;
    Matrix x{points_.f32(0), padded};
    if (points_.storage() != Storage::f32) {
        copy.resize(n * padded);
        for (size_t i = 0; i < n; ++i) points_.get(i, &copy[i * padded]);
        x = Matrix{copy.data(), padded};
    }
    if (n <= SMALL || wanted >= 1) return compare_all(x, width, threads);
    const Truth truth(x, n, points_.dim(), k, threads);
    const size_t wide = std::min(n - 1, k + TIES), shorter = std::max(wide, std::min(n - 1, k + k / 4));
    const auto [less, agreement] = fewest(x, n, points_.dim(), truth, shorter, std::max(AGREEMENT, (1 + wanted) / 2), settings_.seed, threads);
    const size_t dim = less.dim ? less.dim : points_.dim();
    const double needed = std::min(1.0, wanted / agreement), all = pairs_cost(n, points_.dim(), wide);
    const double pairs = less.dim ? std::min(all, pairs_cost(n, dim, shorter)) : all;
    Cells cells(less.dim ? less.matrix() : x, less.dim ? less.rest.data() : nullptr, n, dim);
    size_t probes = 0;
    // What comes first costs least, and tells where the rest would not pay.
    for (const Stage stage : {Stage::chosen, Stage::trained, Stage::settled}) {
        if (stage == Stage::trained) cells.train(threads);
        if (stage == Stage::settled) cells.settle(probes, threads);  // not every point finds room where it belongs
        const size_t found = cells.probes_for(truth.points, truth.near, needed + MARGIN * (1 - needed), threads);
        probes = stage == Stage::settled ? std::max(probes, found) : found;
        const double share = double(probes) / double(cells.count()) * (stage == Stage::chosen ? UNTRAINED : 1);
        if (cells_cost(n, dim, width, share, stage) < pairs) continue;
        found_by_ = pairs < all ? Way::fewer : Way::all;
        if (pairs < all) return compare_pairs(less.matrix(), less.rest.data(), dim, shorter, threads);
        return compare_pairs(x, nullptr, points_.dim(), wide, threads);
    }
    found_by_ = Way::cells;
    take_lists(width);
    cells.neighbours(width, probes, threads, [&](uint32_t v, const uint64_t* keys, size_t count) {
        for (size_t j = 0; j < width; ++j) lists_[v * width + j] = j < count ? key_id(keys[j]) : NONE;
    });
    rescore_lists(threads);
}

void Fanng::take_lists(size_t width) {
    lists_.resize(points_.size() * width);
    list_width_ = width;
}

// All pairs, the nearest `width` by products alone. rest: what is to be added to the squared distances of each point, or null.
void Fanng::compare_pairs(const Matrix& x, const float* rest, size_t dim, size_t width, int threads) {
    const size_t n = points_.size();
    const Array<float> origin = mean_of(x, n, dim);
    Packed packed;
    packed.reset(n, dim, nullptr);
    parallel(packed.panel_count(), 16, threads, [&](size_t begin, size_t end, int) {
        for (size_t p = begin; p < end; ++p) {
            packed.fill_panel(p, origin.data(), [&](size_t i) { return x.row(i); });
            for (size_t i = p * PANEL; rest && i < std::min(n, (p + 1) * PANEL); ++i) packed.lengthen(i, rest[i]);
        }
    });
    Lists lists(n, width);
    join_all(packed, lists, threads);
    take_lists(width);
    parallel(n, 512, threads, [&](size_t begin, size_t end, int) {
        for (size_t i = begin; i < end; ++i) {
            lists.finish(i);
            for (size_t j = 0; j < width; ++j) lists_[i * width + j] = j < lists.count(i) ? key_id(lists.keys(i)[j]) : NONE;
        }
    });
    if (rest) rescore_lists(threads);  // otherwise they are in order but for rounding
}

// Exactly.
void Fanng::compare_all(const Matrix& x, size_t width, int threads) {
    const size_t n = points_.size();
    found_by_ = Way::all;
    take_lists(width);
    std::fill(lists_.data(), lists_.data() + lists_.size(), NONE);
    if (n < 2) return;
    Array<float> distances(n * width);
    Array<int64_t> indices(n * width);
    ExactIndex(x.data, n, x.stride, threads).all_neighbours(width, threads, distances.data(), indices.data());
    for (size_t j = 0; j < n * width; ++j) lists_[j] = indices[j] < 0 ? NONE : uint32_t(indices[j]);
}

// Codes are worth having if they order a point's neighbours nearly as the vectors do. The lists come from the vectors.
bool Fanng::codes_agree() const {
    const size_t n = points_.size(), m = std::min<size_t>(n, 256);
    size_t agree = 0, total = 0;
    CodeSpace space(points_);
    std::vector<uint64_t> words;
    for (size_t s = 0; s < m; ++s) {
        const size_t v = s * n / m;
        const uint32_t* list = &lists_[v * list_width_];
        const size_t count = size_t(std::find(list, list + list_width_, NONE) - list);
        if (count < 4) continue;
        space.ask_point(v);
        words.clear();
        for (size_t j = 0; j < count; ++j)
            measure_all(space, list + j, 1, [&](uint32_t d, uint32_t) { words.push_back(word(d, uint32_t(count - 1 - j))); });
        std::sort(words.begin(), words.end());  // ties count against the codes: they cannot tell those apart
        for (size_t j = 0; j < count / 2; ++j) agree += count - 1 - uint32_t(words[j]) < count / 2;
        total += count / 2;
    }
    return total == 0 || double(agree) >= 0.85 * double(total);
}

// Each point looks at its first `reach` neighbours and at as many that have it among theirs, and with each of them at
// the nearest of its list and at some that have it in their lists.
void Fanng::refine(size_t width, size_t reach, int threads) {
    const size_t fan = reach, depth = reach * 6 / 10, back = reach * 4 / 10;
    const size_t n = points_.size(), old_width = list_width_;
    const uint32_t* before = lists_.data();
    const Reverse reverse(before, n, old_width, fan);
    Array<uint32_t> after(n * width);
    parallel(n, 256, threads, [&](size_t begin, size_t end, int) {
        with_space(points_, [&](auto space) {
            Seen seen;
            Ids met;
            std::vector<uint64_t> found;
            for (size_t u = begin; u < end; ++u) {
                const uint32_t* list = before + u * old_width;
                space.ask_point(u);
                seen.reset(n), seen.add(uint32_t(u));
                met.clear(), found.clear();
                auto meet = [&](uint32_t w) {
                    if (seen.add(w) && !is_dead(w)) met.push_back(w);
                };
                auto look = [&](uint32_t v) {
                    const uint32_t* theirs = before + v * old_width;
                    for (size_t j = 0; j < std::min(depth, old_width) && theirs[j] != NONE; ++j) meet(theirs[j]);
                    // Points that are in few lists are found through their own.
                    reverse.some(v, back, meet);
                };
                for (size_t j = 0; j < old_width && list[j] != NONE; ++j) meet(list[j]);
                reverse.some(u, fan, meet);
                for (size_t j = 0; j < std::min(fan, old_width) && list[j] != NONE; ++j) look(list[j]);
                reverse.some(u, fan, look);
                measure_all(space, met.data(), met.size(), [&](uint32_t d, uint32_t w) { found.push_back(word(d, w)); });
                const size_t kept = std::min(width, found.size());
                std::nth_element(found.begin(), found.begin() + long(kept), found.end());
                std::sort(found.begin(), found.begin() + long(kept));
                for (size_t j = 0; j < width; ++j) after[u * width + j] = j < kept ? uint32_t(found[j]) : NONE;
            }
        });
    });
    list_width_ = width;
    lists_.swap(after);
}

// The order becomes that of the stored vectors.
void Fanng::rescore_lists(int threads) {
    const size_t width = list_width_;
    parallel(points_.size(), 512, threads, [&](size_t begin, size_t end, int) {
        with_vectors(points_, [&](auto space) {
            std::vector<uint64_t> words;
            for (size_t u = begin; u < end; ++u) {
                uint32_t* list = &lists_[u * width];
                const size_t count = size_t(std::find(list, list + width, NONE) - list);
                words.clear();
                space.ask_point(u);
                measure_all(space, list, count, [&](uint32_t d, uint32_t w) { words.push_back(word(d, w)); });
                std::sort(words.begin(), words.end());
                for (size_t j = 0; j < count; ++j) list[j] = uint32_t(words[j]);
            }
        });
    });
}

}  // namespace nngk
