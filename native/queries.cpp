// Searching: where a walk begins, several walks in turns, and the answers.
#include "fanng.h"

#include "mapping.h"
#include "threads.h"

#include <mutex>

namespace nngk {
namespace {

constexpr size_t PIECE = 32;  // queries a thread takes at a time, at most
constexpr size_t TURNS = 4;   // of them that it searches in turns: one works while the memory of the others is on its way

size_t piece(size_t n, int threads) { return std::clamp<size_t>(n / size_t(std::max(threads, 1)), 1, PIECE); }

}  // namespace

// One cut of the tree that leads to where a walk begins; false at a leaf.
template <class Space>
bool Fanng::descend_tree(const Space& space, size_t& at, Scratch& s) const {
    if (tree_.empty() || tree_[at].a == NONE) return false;
    const TreeNode& node = tree_[at];
    uint32_t ids[4] = {node.a, node.b, node.a, node.b}, d[4];
    space.four(ids, d), s.distances += 2;
    at = Space::value(d[0]) - Space::value(d[1]) < double(node.offset) ? node.left : node.right;
    if (tree_[at].a != NONE) space.prefetch(tree_[at].a), space.prefetch(tree_[at].b);
    return true;
}

// Where a walk begins: a leaf of the tree, and the medoid, from which all is reached.
void Fanng::enter_at(size_t node, uint32_t avoid, Ids& entries) const {
    entries.clear();
    if (!tree_.empty() && tree_[node].a == NONE)
        for (uint32_t v = tree_[node].left; v < tree_[node].right; ++v)
            if (v != avoid) entries.push_back(v);
    if (medoid_ != avoid) entries.push_back(medoid_);
}

// A budget that does not reach to a leaf is for the walk alone.
template <class Space>
void Fanng::enter(const Space& space, uint32_t avoid, const Effort& effort, Scratch& s, Ids& entries) const {
    const uint64_t most = effort.budget ? s.distances + effort.budget / 2 : ~uint64_t(0);
    size_t at = 0;
    while (s.distances + 2 <= most && descend_tree(space, at, s)) {}
    enter_at(at, avoid, entries);
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
        distances[j] = j < found ? float(distance_value(uint32_t(words[j] >> 32))) : std::numeric_limits<float>::infinity();
        indices[j] = j < found ? int64_t(uint32_t(words[j])) : -1;
    }
}

// Walks to each of some queries and leaves the best in a pool. ask(space, i, own): prepares query i, and names a point that
// is not to be found, or NONE; false where there is nothing to ask. take(pool, i, own): the answer. from_own: a walk
// begins at that point, otherwise it is not even a way, as if the point were not indexed.
template <class Space, class Ask, class Take>
void Fanng::explore(const Space& given, size_t begin, size_t end, bool from_own, size_t k, const Effort& effort, Scratch* scratch,
                    Ask&& ask, Take&& take) const {
    enum class Step { descend, choose, look };
    struct Walker {
        Space space;
        Scratch* s;
        size_t query, node;
        uint32_t own;
        Step step;
    };
    const size_t n = points_.size(), ef = std::min(n, std::max(effort.ef, k)), keep = effort.budget >= n ? n : std::min(n, 2 * k + 32);
    thread_local Ids entries;
    size_t next = begin;
    auto start = [&](Walker& w) {
        while (next < end) {
            w.query = next++, w.node = 0, w.own = NONE, w.step = Step::descend;
            if (ask(w.space, w.query, w.own)) return true;
            w.s->pool.reset(1);
            take(w.s->pool, w.query, w.own);
        }
        return false;
    };
    auto dead = [&](const Walker& w) { return [this, own = w.own](uint32_t v) { return is_dead(v) || v == own; }; };
    // Returns false when the walk is over.
    auto step = [&](Walker& w) {
        const uint32_t avoid = from_own ? NONE : w.own;
        if (w.step == Step::choose) return w.step = Step::look, choose_next(w.space, graph_, dead(w), *w.s);
        if (w.step == Step::look) return w.step = Step::choose, look_around(w.space, graph_, *w.s), true;
        if (effort.budget) {
            const uint64_t before = w.s->distances;
            from_own ? entries.assign(1, w.own) : enter(w.space, avoid, effort, *w.s, entries);
            backtrack(w.space, graph_, entries.data(), entries.size(), keep, effort.budget - (w.s->distances - before), dead(w), avoid, *w.s);
            return false;
        }
        if (!from_own && descend_tree(w.space, w.node, *w.s)) return true;
        from_own ? entries.assign(1, w.own) : enter_at(w.node, avoid, entries);
        begin_search(w.space, graph_, entries.data(), entries.size(), ef, avoid, *w.s);
        w.step = Step::choose;
        return true;
    };
    std::vector<Walker> walkers;
    std::vector<size_t> active;
    walkers.reserve(TURNS);
    for (size_t t = 0; t < TURNS && next < end; ++t) {
        scratch[t].distances = 0;
        walkers.push_back(Walker{given, scratch + t, 0, 0, NONE, Step::descend});
        if (start(walkers[t])) active.push_back(t);
    }
    while (!active.empty())
        for (size_t j = 0; j < active.size();) {
            Walker& w = walkers[active[j]];
            if (step(w)) {
                ++j;
                continue;
            }
            take(w.s->pool, w.query, w.own);
            if (!start(w)) active.erase(active.begin() + long(j));
        }
    for (const Walker& w : walkers) distances_ += w.s->distances;
    queries_ += end - begin;
}

void Fanng::search(const float* x, size_t n, size_t k, const Effort& effort, int threads, float* distances,
                   int64_t* indices) const {
    std::shared_lock<std::shared_mutex> reading(lock_);
    const size_t dim = points_.dim();
    parallel(n, piece(n, threads), threads, [&](size_t begin, size_t end, int) {
        thread_local Scratch scratch[TURNS];
        Array<float> query(points_.padded());
        std::fill(query.begin(), query.end(), 0.0f);
        auto at = [&](size_t i) { return std::memcpy(query.data(), x + i * dim, dim * sizeof(float)), query.data(); };
        with_space(points_, [&](auto space) {
            explore(space, begin, end, false, k, effort, scratch,
                    [&](auto& asked, size_t i, uint32_t&) { return asked.ask(at(i)), true; },
                    [&](const Pool& pool, size_t i, uint32_t) { answer(pool, at(i), k, NONE, distances + i * k, indices + i * k); });
        });
    });
}

void Fanng::search_points(const int64_t* ids, size_t n, size_t k, const Effort& effort, bool from_own, int threads,
                          float* distances, int64_t* indices) const {
    std::shared_lock<std::shared_mutex> reading(lock_);
    parallel(n, piece(n, threads), threads, [&](size_t begin, size_t end, int) {
        thread_local Scratch scratch[TURNS];
        with_space(points_, [&](auto space) {
            explore(space, begin, end, from_own, k, effort, scratch,
                    [&](auto& asked, size_t i, uint32_t& own) {
                        own = vertex_of(ids ? ids[i] : int64_t(i));
                        if (own != NONE) asked.ask_point(own);
                        return own != NONE;
                    },
                    [&](const Pool& pool, size_t i, uint32_t own) { answer(pool, nullptr, k, own, distances + i * k, indices + i * k); });
        });
    });
}

template void Fanng::enter(const CodeSpace&, uint32_t, const Effort&, Scratch&, Ids&) const;
template void Fanng::enter(const VectorSpace<Storage::f32>&, uint32_t, const Effort&, Scratch&, Ids&) const;
template void Fanng::enter(const VectorSpace<Storage::bf16>&, uint32_t, const Effort&, Scratch&, Ids&) const;
template void Fanng::enter(const VectorSpace<Storage::f16>&, uint32_t, const Effort&, Scratch&, Ids&) const;

}  // namespace nngk
