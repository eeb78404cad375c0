#include "fanng.h"

#include "contents.h"
#include "threads.h"

#include <mutex>
#include <stdexcept>

namespace nngk {
namespace {

constexpr size_t ENTRY_LEAF = 24;  // points of a leaf of the tree that queries descend: all of them start the walk
constexpr size_t STALE_REACH = 24;  // of the round that brings lists up to date after points came and went
constexpr double ROUND_GAINS = 0.0005; // of recall for each neighbour that it looks at, about
constexpr int TRIES = 3;           // at lists of a wanted recall, each with half of what the one before might miss
constexpr size_t PIECE = 8;        // queries a thread takes at a time

}  // namespace

Fanng::Fanng(const Settings& settings) : settings_(settings), points_(settings.dim, settings.storage) {}
Fanng::~Fanng() = default;

size_t Fanng::size() const {
    std::shared_lock<FairMutex> reading(lock_);
    return points_.size() - dead_count_;
}
size_t Fanng::id_count() const {
    std::shared_lock<FairMutex> reading(lock_);
    return place_.size();
}

size_t Fanng::kept_width(size_t k) const {
    // Longer than asked for: estimated distances order the last ones loosely, and after a small move of the points
    // the nearest are still among them.
    return std::min(std::max<size_t>(points_.size(), 2) - 1, k + k / 2);
}

void Fanng::build(const float* x, size_t n, int threads) {
    std::unique_lock<FairMutex> writing(lock_);
    build_unlocked(x, n, threads);
}

void Fanng::build_unlocked(const float* x, size_t n, int threads) {
    const size_t dim = points_.dim(), padded = points_.padded();
    points_ = Points(dim, settings_.storage);
    points_.resize(n);
    dead_.clear(), dead_count_ = 0, walks_ = 0, walk_success_ = 0, lists_stale_ = false;
    Array<float> wide;
    Matrix given{x, dim};
    if (padded != dim) {
        wide.assign(n * padded, 0.0f);
        for (size_t i = 0; i < n; ++i) std::memcpy(&wide[i * padded], x + i * dim, dim * 4);
        given = Matrix{wide.data(), padded};
    }
    Tree tree;
    tree.build(given, n, padded, ENTRY_LEAF, ENTRY_LEAF, settings_.seed * 1000, threads);
    label_.assign(n, 0u), place_.assign(n, NONE);
    for (size_t i = 0; i < n; ++i) {
        label_[i] = tree.order[i], place_[tree.order[i]] = uint32_t(i);
        points_.set(i, given.row(tree.order[i]));
    }
    for (TreeNode& node : tree.nodes)
        if (node.a != NONE) node.a = place_[node.a], node.b = place_[node.b];
    tree_ = std::move(tree.nodes);
    wide = {};
    find_lists(settings_.neighbours, double(settings_.recall), threads);
    if (settings_.codes) {
        points_.fit_codes(threads);
        if (points_.has_codes() && !codes_agree()) points_.drop_codes();
    }
    linked_ = false, threads_ = threads;
}

// Whoever only wants the lists does not wait for a graph.
void Fanng::prepare(int threads) {
    std::unique_lock<FairMutex> writing(lock_);
    if (!linked_) link(threads ? threads : threads_);
}

std::shared_lock<FairMutex> Fanng::reading_graph(int threads) const {
    for (;;) {
        std::shared_lock<FairMutex> reading(lock_);
        if (linked_) return reading;
        reading.unlock();
        const_cast<Fanng*>(this)->prepare(threads);
    }
}

void Fanng::link(int threads) {
    linked_ = true;
    find_medoid();
    make_graph(threads);
    walk(settings_.walk_rounds, threads);
    complete();
}

void Fanng::find_medoid() {
    const size_t n = points_.size(), padded = points_.padded(), m = std::min<size_t>(n, 10000);
    Array<float> mean(padded), x(padded);
    std::fill(mean.begin(), mean.end(), 0.0f);
    for (size_t i = 0; i < m; ++i) {
        points_.get(i * n / m, x.data());
        for (size_t k = 0; k < padded; ++k) mean[k] += x[k] / float(m);
    }
    uint64_t best = ~uint64_t(0);
    with_vectors(points_, [&](auto space) {
        space.ask(mean.data());
        for (size_t i = 0; i < m; ++i) {
            const uint32_t v = uint32_t(i * n / m);
            measure_all(space, &v, 1, [&](uint32_t d, uint32_t w) { best = std::min(best, uint64_t(d) << 32 | w); });
        }
    });
    medoid_ = uint32_t(best);
}

// Where a walk to the query begins: the leaf of the tree that it falls into, and the medoid, from which all is reached. A
// budget that does not reach to a leaf is for the walk alone.
template <class Space>
void Fanng::enter(Space& space, uint32_t avoid, const Effort& effort, Scratch& s, Ids& entries) const {
    entries.clear();
    size_t at = 0, looked = 0;
    const size_t most = effort.budget ? size_t(effort.budget) / 2 : ~size_t(0);
    while (!tree_.empty() && tree_[at].a != NONE && looked + 2 <= most) {
        const TreeNode& node = tree_[at];
        uint32_t ids[4] = {node.a, node.b, node.a, node.b}, d[4];
        space.four(ids, d), looked += 2;
        const double margin = (Space::value(d[0]) - Space::value(d[1])) * space.scale();
        at = margin < double(node.offset) ? node.left : node.right;
        if (tree_[at].a != NONE) space.prefetch(tree_[at].a), space.prefetch(tree_[at].b);
    }
    if (!tree_.empty() && tree_[at].a == NONE)
        for (uint32_t v = tree_[at].left; v < tree_[at].right; ++v)
            if (v != avoid) entries.push_back(v);
    if (medoid_ != avoid) entries.push_back(medoid_);
    s.distances += looked;
}

// The pool's vertices that are not removed, by the distance of the stored vectors; ties by id.
void Fanng::answer(const Pool& pool, const float* query, size_t k, uint32_t own, float* distances, int64_t* indices) const {
    thread_local Ids ids;
    thread_local std::vector<uint64_t> words;
    ids.clear(), words.clear();
    for (size_t j = 0; j < pool.size(); ++j) {
        const uint32_t v = Pool::vertex(pool[j]);
        if (v != own && !is_dead(v)) ids.push_back(v);
    }
    if (!ids.empty()) with_vectors(points_, [&](auto space) {
        if (query)
            space.ask(query);
        else
            space.ask_point(own);
        measure_all(space, ids.data(), ids.size(),
                    [&](uint32_t d, uint32_t v) { words.push_back(uint64_t(d) << 32 | label_[v]); });
    });
    write_row(words, k, distances, indices);
}

void Fanng::write_row(std::vector<uint64_t>& words, size_t k, float* distances, int64_t* indices) {
    const size_t found = std::min(k, words.size());
    std::partial_sort(words.begin(), words.begin() + long(found), words.end());
    for (size_t j = 0; j < k; ++j) {
        distances[j] = j < found ? float(VectorSpace<Storage::f32>::value(uint32_t(words[j] >> 32)))
                                 : std::numeric_limits<float>::infinity();
        indices[j] = j < found ? int64_t(uint32_t(words[j])) : -1;
    }
}

// Walks to what the space was asked for and leaves the best in the pool. own: a point that is not to be found, or NONE;
// from_own: the walk begins at it, otherwise it is not even a way, as if the point were not indexed.
template <class Space>
void Fanng::explore(Space& space, uint32_t own, bool from_own, size_t k, const Effort& effort, Scratch& s) const {
    thread_local Ids entries;
    const uint64_t before = s.distances;
    const uint32_t avoid = from_own ? NONE : own;
    if (from_own)
        entries.assign(1, own);
    else
        enter(space, avoid, effort, s, entries);
    auto dead = [&](uint32_t v) { return is_dead(v) || v == own; };
    const size_t n = points_.size();
    if (effort.budget) {
        const size_t keep = effort.budget >= n ? n : std::min(n, 2 * k + 32);
        backtrack(space, graph_, entries.data(), entries.size(), keep, effort.budget - (s.distances - before), dead, avoid, s);
    } else {
        best_first(space, graph_, entries.data(), entries.size(), std::min(n, std::max(effort.ef, k)), dead, avoid, s);
    }
}

void Fanng::search(const float* x, size_t n, size_t k, const Effort& effort, int threads, float* distances,
                   int64_t* indices) const {
    const auto reading = reading_graph(threads);
    const size_t dim = points_.dim();
    parallel(n, PIECE, threads, [&](size_t begin, size_t end, int) {
        thread_local Scratch s;
        Array<float> query(points_.padded());
        std::fill(query.begin(), query.end(), 0.0f);
        s.distances = 0;
        with_space(points_, [&](auto space) {
            for (size_t i = begin; i < end; ++i) {
                std::memcpy(query.data(), x + i * dim, dim * sizeof(float));
                space.ask(query.data());
                explore(space, NONE, false, k, effort, s);
                answer(s.pool, query.data(), k, NONE, distances + i * k, indices + i * k);
            }
        });
        distances_ += s.distances, queries_ += end - begin;
    });
}

void Fanng::search_points(const int64_t* ids, size_t n, size_t k, const Effort& effort, bool from_own, int threads,
                          float* distances, int64_t* indices) const {
    const auto reading = reading_graph(threads);
    parallel(n, PIECE, threads, [&](size_t begin, size_t end, int) {
        thread_local Scratch s;
        s.distances = 0;
        with_space(points_, [&](auto space) {
            for (size_t i = begin; i < end; ++i) {
                const uint32_t own = vertex_of(ids ? ids[i] : int64_t(i));
                s.pool.reset(1);
                if (own != NONE) {
                    space.ask_point(own);
                    explore(space, own, from_own, k, effort, s);
                }
                answer(s.pool, nullptr, k, own, distances + i * k, indices + i * k);
            }
        });
        distances_ += s.distances, queries_ += end - begin;
    });
}

double Fanng::complete_lists(size_t k, const int64_t* ids, const int64_t* truth, size_t n, double wanted, int threads) {
    std::unique_lock<FairMutex> writing(lock_);
    if (lists_stale_) {
        consolidate(threads);
        refine(list_width_, STALE_REACH, threads);
        rescore_lists(threads);
        lists_stale_ = false;
    }
    const bool kept = std::min(points_.size() - 1, k + TIES) <= list_width_;
    double share = kept ? list_share(ids, truth, n, k) : 0;
    // A round of looking around costs less than looking for all again, and the less the shorter it is.
    for (size_t reach : {12, 24, 40}) {
        if (share >= wanted || wanted - share > ROUND_GAINS * double(reach)) continue;
        refine(list_width_, reach, threads);
        rescore_lists(threads);
        share = list_share(ids, truth, n, k);
    }
    double aim = kept ? (1 + wanted) / 2 : wanted;  // lists that were found for it fell short
    for (int attempt = 0; attempt < TRIES && share < wanted; ++attempt) {
        find_lists(k, attempt == TRIES - 1 ? 1 : aim, threads);
        share = list_share(ids, truth, n, k);
        aim = (1 + aim) / 2;
    }
    return share;
}

// How many of the true neighbours (n, k) of these points are in their lists.
double Fanng::list_share(const int64_t* ids, const int64_t* truth, size_t n, size_t k) const {
    size_t found = 0, total = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint32_t v = vertex_of(ids[i]);
        std::vector<int64_t> mine;
        for (size_t j = 0; v != NONE && j < list_width_ && lists_[v * list_width_ + j] != NONE; ++j)
            mine.push_back(int64_t(label_[lists_[v * list_width_ + j]]));
        std::sort(mine.begin(), mine.end());
        for (size_t j = 0; j < k; ++j) {
            if (truth[i * k + j] < 0) continue;
            ++total, found += std::binary_search(mine.begin(), mine.end(), truth[i * k + j]);
        }
    }
    return total ? double(found) / double(total) : 1;
}

void Fanng::from_lists(const int64_t* ids, size_t n, size_t k, int threads, float* distances, int64_t* indices) const {
    std::shared_lock<FairMutex> reading(lock_);
    const size_t width = std::min(list_width_, k + TIES);
    parallel(n, 64, threads, [&](size_t begin, size_t end, int) {
        with_vectors(points_, [&](auto space) {
            std::vector<uint64_t> words;
            Ids near;
            for (size_t i = begin; i < end; ++i) {
                const uint32_t v = vertex_of(ids[i]);
                words.clear(), near.clear();
                if (v != NONE) {
                    const uint32_t* list = &lists_[v * list_width_];
                    for (size_t j = 0; j < width && list[j] != NONE; ++j)
                        if (!is_dead(list[j])) near.push_back(list[j]);
                    space.ask_point(v);
                    measure_all(space, near.data(), near.size(), [&](uint32_t d, uint32_t w) {
                        words.push_back(uint64_t(d) << 32 | label_[w]);
                    });
                }
                write_row(words, k, distances + i * k, indices + i * k);
            }
        });
    });
}

bool Fanng::alive(int64_t id) const {
    std::shared_lock<FairMutex> reading(lock_);
    return vertex_of(id) != NONE;
}

void Fanng::vectors(const int64_t* ids, size_t n, float* out) const {
    std::shared_lock<FairMutex> reading(lock_);
    Array<float> x(points_.padded());
    for (size_t i = 0; i < n; ++i) {
        const uint32_t v = vertex_of(ids[i]);
        if (v == NONE) throw std::invalid_argument("no point has that index");
        points_.get(v, x.data());
        std::memcpy(out + i * points_.dim(), x.data(), points_.dim() * 4);
    }
}

Stats Fanng::stats() const {
    const auto reading = reading_graph(0);
    Stats s;
    s.points = points_.size() - dead_count_, s.removed = place_.size() - s.points;
    s.min_degree = s.min_in_degree = s.points ? ~uint64_t(0) : 0;
    const Ids in = in_degrees();
    for (size_t v = 0; v < graph_.size(); ++v) {
        if (is_dead(uint32_t(v))) continue;
        const uint64_t degree = graph_.degree(v);
        s.min_in_degree = std::min<uint64_t>(s.min_in_degree, in[v]);
        s.edges += degree, s.min_degree = std::min(s.min_degree, degree), s.max_degree = std::max(s.max_degree, degree);
    }
    s.bytes = points_.bytes() + graph_.size() * graph_.stride() * 4 + lists_.size() * 4 + tree_.size() * sizeof(TreeNode);
    s.walks = walks_, s.walk_success = walk_success_, s.distances = distances_, s.queries = queries_;
    s.codes = points_.has_codes();
    return s;
}

template void Fanng::enter(FileSpace&, uint32_t, const Effort&, Scratch&, Ids&) const;
template void Fanng::enter(CodeSpace&, uint32_t, const Effort&, Scratch&, Ids&) const;
template void Fanng::enter(VectorSpace<Storage::f32>&, uint32_t, const Effort&, Scratch&, Ids&) const;
template void Fanng::enter(VectorSpace<Storage::bf16>&, uint32_t, const Effort&, Scratch&, Ids&) const;
template void Fanng::enter(VectorSpace<Storage::f16>&, uint32_t, const Effort&, Scratch&, Ids&) const;

}  // namespace nngk
