// Neighbour lists of all points: exhaustive comparison inside the leaves of several random trees, then rounds in which
// every point looks at the neighbours of its neighbours.
#include "fanng.h"

#include "threads.h"

#include <cmath>

namespace nngk {
namespace {

constexpr size_t SMALL = 4096;           // up to here every pair is compared

uint64_t word(uint32_t distance, uint32_t entry) { return uint64_t(distance) << 32 | entry; }

// Each tree finds a smaller share of the neighbours among more points, and costs less than a round that makes up for it.
size_t tree_count(size_t n) { return size_t(std::clamp(12 + 8 * std::log2(double(n) / 50000), 8.0, 48.0)); }

// Who has u among its first `fan` neighbours; at most `fan` of them, evenly taken.
struct Reverse {
    std::vector<uint64_t> start;
    std::vector<uint32_t> entries;

    Reverse(const uint32_t* lists, size_t n, size_t width, size_t fan) : start(n + 1, 0) {
        fan = std::min(fan, width);
        auto each = [&](auto&& visit) {
            for (size_t v = 0; v < n; ++v)
                for (size_t j = 0; j < fan && lists[v * width + j] != NONE; ++j) {
                    const uint32_t e = lists[v * width + j];
                    visit(e & ~FRESH, uint32_t(v) | (e & FRESH));
                }
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

}  // namespace

void Fanng::seed_lists(Lists& lists, const Matrix& x, const std::vector<uint32_t>& first_leaves, int threads) {
    const size_t n = points_.size(), dim = points_.padded();
    struct Leaf {
        const uint32_t* ids;
        size_t count, tree;
    };
    std::vector<Tree> trees(n <= SMALL ? 0 : (settings_.trees ? settings_.trees : tree_count(n)) - 1);
    parallel(trees.size(), 1, threads, [&](size_t t, size_t, int) {
        trees[t].build(x, n, dim, settings_.leaf, settings_.leaf, settings_.seed * 1000 + t + 1, 1);
    });
    Ids in_order(n);
    for (size_t i = 0; i < n; ++i) in_order[i] = uint32_t(i);
    Partitions partitions{rounded(trees.size() + 1, 4), {}};
    partitions.part_of.resize(n * partitions.count);
    std::vector<Leaf> leaves;
    auto cut = [&](size_t tree, const uint32_t* order, const std::vector<uint32_t>& bounds) {
        for (size_t b = 0; b + 1 < bounds.size(); ++b) {
            leaves.push_back({order + bounds[b], bounds[b + 1] - bounds[b], tree});
            for (size_t i = bounds[b]; i < bounds[b + 1]; ++i) partitions.part_of[order[i] * partitions.count + tree] = uint32_t(b);
        }
    };
    cut(0, in_order.data(), n <= SMALL ? Ids{0, uint32_t(n)} : first_leaves);
    for (size_t t = 0; t < trees.size(); ++t) cut(t + 1, trees[t].order.data(), trees[t].coarse);
    parallel(leaves.size(), 1, threads, [&](size_t l, size_t, int) {
        thread_local Packed packed;
        const Leaf& leaf = leaves[l];
        // A leaf's own first point is as good an origin as its mean.
        packed.fill(leaf.count, points_.dim(), x.row(leaf.ids[0]), leaf.ids, [&](size_t i) { return x.row(leaf.ids[i]); });
        const Side side{&packed, 0, packed.panel_count(), &lists};
        join(side, side, true, true, &partitions, leaf.tree);
    });
}

void Fanng::lists_to_rows(Lists& lists, size_t width, int threads) {
    list_width_ = width;
    lists_.resize(points_.size() * width);
    parallel(points_.size(), 512, threads, [&](size_t begin, size_t end, int) {
        for (size_t i = begin; i < end; ++i) {
            lists.finish(i);
            for (size_t j = 0; j < width; ++j)
                lists_[i * width + j] = j < lists.count(i) ? key_id(lists.keys(i)[j]) : NONE;
        }
    });
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
void Fanng::refine(size_t width, size_t reach, bool all_fresh, int threads) {
    const size_t fan = reach, depth = reach * 6 / 10, back = reach * 4 / 10;
    const size_t n = points_.size(), old_width = list_width_;
    Array<uint32_t> before(lists_.data(), lists_.data() + lists_.size());
    for (size_t j = 0; j < before.size(); ++j)
        if (before[j] != NONE && (all_fresh || (!fresh_.empty() && fresh_[j]))) before[j] |= FRESH;
    fresh_.clear();
    const Reverse reverse(before.data(), n, old_width, fan);
    Array<uint32_t> after(n * width);
    parallel(n, 256, threads, [&](size_t begin, size_t end, int) {
        with_space(points_, [&](auto space) {
            Seen seen;
            Ids fresh, mine;
            std::vector<uint64_t> found;
            for (size_t u = begin; u < end; ++u) {
                const uint32_t* list = &before[u * old_width];
                space.ask_point(u);
                seen.reset(n), seen.add(uint32_t(u));
                mine.clear(), fresh.clear(), found.clear();
                for (size_t j = 0; j < old_width && list[j] != NONE; ++j) {
                    const uint32_t w = list[j] & ~FRESH;
                    seen.add(w);
                    if (dead_.empty() || !dead_[w]) mine.push_back(w);
                }
                auto meet = [&](uint32_t e) {
                    const uint32_t w = e & ~FRESH;
                    if (seen.add(w) && (dead_.empty() || !dead_[w])) fresh.push_back(w);
                };
                auto look = [&](uint32_t entry) {
                    const uint32_t v = entry & ~FRESH;
                    const uint32_t* theirs = &before[v * old_width];
                    for (size_t j = 0; j < std::min(depth, old_width) && theirs[j] != NONE; ++j)
                        if ((entry | theirs[j]) & FRESH) meet(theirs[j]);
                    // Points that are in few lists are found through their own.
                    reverse.some(v, back, [&](uint32_t e) {
                        if ((entry | e) & FRESH) meet(e);
                    });
                };
                reverse.some(u, fan, meet);
                for (size_t j = 0; j < std::min(fan, old_width) && list[j] != NONE; ++j) look(list[j]);
                reverse.some(u, fan, look);
                measure_all(space, mine.data(), mine.size(), [&](uint32_t d, uint32_t w) { found.push_back(word(d, w)); });
                uint64_t cut = ~uint64_t(0);
                if (found.size() >= width) {
                    std::nth_element(found.begin(), found.begin() + long(width) - 1, found.end());
                    cut = found[width - 1];
                    found.resize(width);
                }
                measure_all(space, fresh.data(), fresh.size(), [&](uint32_t d, uint32_t w) {
                    if (word(d, w) < cut) found.push_back(word(d, w | FRESH));
                });
                std::sort(found.begin(), found.end());
                for (size_t j = 0; j < width; ++j) after[u * width + j] = j < found.size() ? uint32_t(found[j]) : NONE;
            }
        });
    });
    list_width_ = width;
    lists_.swap(after);
}

// The order becomes that of the stored vectors, and the marks go to a place of their own.
void Fanng::rescore_lists(int threads) {
    const size_t width = list_width_;
    fresh_.assign(lists_.size(), 0);
    parallel(points_.size(), 512, threads, [&](size_t begin, size_t end, int) {
        with_vectors(points_, [&](auto space) {
            std::vector<uint64_t> words;
            Ids ids;
            for (size_t u = begin; u < end; ++u) {
                uint32_t* list = &lists_[u * width];
                size_t count = 0;
                ids.clear(), words.clear();
                for (; count < width && list[count] != NONE; ++count) ids.push_back(list[count] & ~FRESH);
                space.ask_point(u);
                measure_all(space, ids.data(), count, [&](uint32_t d, uint32_t) { words.push_back(word(d, list[words.size()])); });
                // Ties order by index whatever the mark.
                std::sort(words.begin(), words.end(), [](uint64_t a, uint64_t b) { return (a & ~uint64_t(FRESH)) < (b & ~uint64_t(FRESH)); });
                for (size_t j = 0; j < count; ++j) {
                    fresh_[u * width + j] = (uint32_t(words[j]) & FRESH) != 0;
                    list[j] = uint32_t(words[j]) & ~FRESH;
                }
            }
        });
    });
}

}  // namespace nngk
