// Changing an index: points that come, go and move.
#include "fanng.h"

#include "contents.h"
#include "occlusion.h"
#include "threads.h"

#include <mutex>
#include <numeric>

namespace nngk {
namespace {

constexpr size_t BATCH = 4096;           // new points that are linked at a time
constexpr size_t ADD_EF = 96;            // pool of the search for a new point's neighbours
constexpr double DEAD_SHARE = 0.1;       // of removed vertices, before the graph is mended and they are dropped
constexpr size_t DEAD_LEAST = 256;
constexpr size_t UPDATE_REACH = 12;    // the old lists are good: a short look suffices

}  // namespace

void Fanng::add(const float* x, size_t n, int threads, int64_t* ids) {
    std::unique_lock<FairMutex> writing(lock_);
    const size_t first = place_.size();
    for (size_t i = 0; i < n; ++i) ids[i] = int64_t(first + i);
    if (!n) return;
    if (points_.size() == dead_count_) {  // nothing to link to: a new graph, whose ids go on from the old ones
        build_unlocked(x, n, threads);
        place_.insert(place_.begin(), first, NONE);
        for (size_t v = 0; v < n; ++v) label_[v] += uint32_t(first);
        return;
    }
    if (!linked_) link(threads);
    if (in_.size() != graph_.size()) in_ = in_degrees();
    for (size_t at = 0; at < n; at += BATCH) insert(x + at * points_.dim(), std::min(BATCH, n - at), threads);
    if (n * 50 >= points_.size()) connect();
}

void Fanng::insert(const float* x, size_t n, int threads) {
    const size_t first = points_.size(), total = first + n, dim = points_.dim();
    points_.resize(total);
    label_.resize(total);
    for (size_t i = 0; i < n; ++i) {
        points_.set(first + i, x + i * dim);
        if (points_.has_codes()) points_.encode(first + i);
        label_[first + i] = uint32_t(place_.size());
        place_.push_back(uint32_t(first + i));
    }
    if (!dead_.empty()) dead_.resize(total, 0);
    lists_.resize(total * list_width_);
    std::fill(lists_.data() + first * list_width_, lists_.data() + total * list_width_, NONE);
    // The new points among themselves, exactly; and among the old ones by walking.
    Lists inside(n, std::min<size_t>(n, 24));
    Packed packed;
    packed.fill(n, dim, x, nullptr, [&](size_t i) { return x + i * dim; });
    const Side side{&packed, 0, packed.panel_count(), &inside};
    join(side, side, true, false);
    std::vector<Ids> chosen(n);
    parallel(n, 8, threads, [&](size_t begin, size_t end, int) {
        thread_local Scratch s;
        Ids entries, candidates;
        std::vector<uint64_t> words;
        with_space(points_, [&](auto space) {
            for (size_t i = begin; i < end; ++i) {
                space.ask_point(first + i);
                enter(space, NONE, Effort{}, s, entries);
                best_first(space, graph_, entries.data(), entries.size(), std::max<size_t>(ADD_EF, list_width_),
                           [&](uint32_t v) { return is_dead(v); }, NONE, s);
                words.clear();
                for (size_t j = 0; j < s.pool.size(); ++j)
                    if (!is_dead(Pool::vertex(s.pool[j])))
                        words.push_back(edge_word(Pool::distance(s.pool[j]), Pool::vertex(s.pool[j])));
                inside.finish(i);
                candidates.clear();
                for (size_t j = 0; j < inside.count(i); ++j) candidates.push_back(uint32_t(first) + key_id(inside.keys(i)[j]));
                measure_all(space, candidates.data(), candidates.size(), [&](uint32_t d, uint32_t v) { words.push_back(edge_word(d, v)); });
                std::sort(words.begin(), words.end());
                for (size_t j = 0; j < std::min(list_width_, words.size()); ++j)
                    lists_[(first + i) * list_width_ + j] = uint32_t(words[j]);
                if (words.size() > settings_.neighbours) words.resize(settings_.neighbours);
                choose_edges(space, words, settings_.degree, double(settings_.alpha), chosen[i]);
            }
        });
    });
    graph_.grow(total);
    in_.resize(total, 0);
    for (size_t i = 0; i < n; ++i) {
        graph_.set(first + i, chosen[i].data(), chosen[i].size());
        for (const uint32_t v : chosen[i]) ++in_[v];
    }
    support(link_to_new(first, threads));
    lists_stale_ = true;
}

// The edges of new vertices are offered to their other ends. Returns the new vertices and those that lost an edge to them.
Fanng::Ids Fanng::link_to_new(size_t first, int threads) {
    std::vector<std::pair<uint32_t, uint32_t>> offers;
    for (size_t v = first; v < graph_.size(); ++v)
        for (uint32_t e = 0; e < graph_.degree(v); ++e) offers.emplace_back(graph_.edges(v)[e], uint32_t(v));
    std::sort(offers.begin(), offers.end());
    std::vector<size_t> starts;
    for (size_t i = 0; i < offers.size(); ++i)
        if (!i || offers[i].first != offers[i - 1].first) starts.push_back(i);
    starts.push_back(offers.size());
    std::vector<Ids> before(starts.size() - 1);
    parallel(before.size(), 32, threads, [&](size_t begin, size_t end, int) {
        with_space(points_, [&](auto space) {
            Ids offered;
            for (size_t g = begin; g < end; ++g) {
                const uint32_t v = offers[starts[g]].first;
                before[g].assign(graph_.edges(v), graph_.edges(v) + graph_.degree(v));
                offered.clear();
                for (size_t i = starts[g]; i < starts[g + 1]; ++i) offered.push_back(offers[i].second);
                relink(space, v, offered, settings_.degree);
            }
        });
    });
    Ids changed(graph_.size() - first);
    std::iota(changed.begin(), changed.end(), uint32_t(first));
    for (size_t g = 0; g < before.size(); ++g) {
        const uint32_t v = offers[starts[g]].first;
        const uint32_t* now = graph_.edges(v);
        for (uint32_t e = 0; e < graph_.degree(v); ++e) ++in_[now[e]];
        for (const uint32_t w : before[g]) {
            --in_[w];
            if (std::find(now, now + graph_.degree(v), w) == now + graph_.degree(v)) changed.push_back(w);
        }
        changed.push_back(v);
    }
    return changed;
}

void Fanng::remove(const int64_t* ids, size_t n, int threads) {
    std::unique_lock<FairMutex> writing(lock_);
    if (!linked_) link(threads);
    if (dead_.empty()) dead_.assign(points_.size(), 0);
    for (size_t i = 0; i < n; ++i) {
        const uint32_t v = vertex_of(ids[i]);
        if (v == NONE) continue;
        dead_[v] = 1, ++dead_count_;
        place_[size_t(ids[i])] = NONE;
    }
    lists_stale_ = true;
    if (double(dead_count_) > DEAD_SHARE * double(points_.size()) && (dead_count_ > DEAD_LEAST || dead_count_ == points_.size()))
        consolidate(threads);
}

// Whoever had an edge to a removed vertex is offered where that vertex led; then the removed ones are dropped.
void Fanng::consolidate(int threads) {
    if (!dead_count_) return;
    const size_t n = points_.size();
    Ids kept;
    for (uint32_t v = 0; v < n; ++v)
        if (!is_dead(v)) kept.push_back(v);
    parallel(kept.size(), 256, threads, [&](size_t begin, size_t end, int) {
        with_space(points_, [&](auto space) {
            Ids offered;
            for (size_t i = begin; i < end; ++i) {
                const uint32_t v = kept[i];
                offered.clear();
                bool lost = false;
                for (uint32_t e = 0; e < graph_.degree(v); ++e) {
                    const uint32_t w = graph_.edges(v)[e];
                    if (!is_dead(w)) continue;
                    lost = true;
                    offered.insert(offered.end(), graph_.edges(w), graph_.edges(w) + graph_.degree(w));
                }
                const uint32_t* list = &lists_[v * list_width_];
                for (size_t j = 0; lost && j < list_width_ && list[j] != NONE; ++j) offered.push_back(list[j]);
                if (lost) relink(space, v, offered, settings_.degree);
            }
        });
    });
    renumber(kept);
    if (kept.empty()) return;
    find_medoid();
    complete();
}

void Fanng::renumber(const Ids& kept) {
    const size_t n = points_.size(), m = kept.size();
    Ids moved(n + 1);  // where a vertex went; for a dropped one, where the next kept one went
    for (size_t v = 0, i = 0; v <= n; ++v) {
        moved[v] = uint32_t(i);
        if (v < n && i < m && kept[i] == v) ++i;
    }
    points_.reorder(kept.data(), m);
    Array<uint32_t> rows(m * graph_.stride()), lists(m * list_width_), labels(m);
    std::fill(rows.begin(), rows.end(), 0u);
    std::fill(lists.begin(), lists.end(), NONE);
    for (size_t i = 0; i < m; ++i) {
        const uint32_t v = kept[i];
        uint32_t* row = &rows[i * graph_.stride()];
        for (uint32_t e = 0; e < graph_.degree(v); ++e)
            if (!is_dead(graph_.edges(v)[e])) row[++row[0]] = moved[graph_.edges(v)[e]];
        size_t filled = 0;
        for (size_t j = 0; j < list_width_ && lists_[v * list_width_ + j] != NONE; ++j)
            if (!is_dead(lists_[v * list_width_ + j])) lists[i * list_width_ + filled++] = moved[lists_[v * list_width_ + j]];
        labels[i] = label_[v];
        place_[labels[i]] = uint32_t(i);
    }
    graph_.buffer().swap(rows), graph_.restore(m, graph_.stride());
    lists_.swap(lists), label_.swap(labels);
    const uint32_t last = m ? uint32_t(m - 1) : 0;
    for (TreeNode& node : tree_) {
        if (node.a == NONE)
            node.left = moved[node.left], node.right = moved[node.right];
        else
            node.a = std::min(moved[node.a], last), node.b = std::min(moved[node.b], last);
    }
    if (!m) tree_.clear();
    dead_.clear(), dead_count_ = 0;
}

// The points moved a little: the old neighbour lists, measured anew and refined once, are where the search for the new
// ones starts.
void Fanng::update(const float* x, size_t n, int threads) {
    std::unique_lock<FairMutex> writing(lock_);
    consolidate(threads);
    (void)n;
    const size_t dim = points_.dim();
    size_t row = 0;
    for (const uint32_t v : place_)
        if (v != NONE) points_.set(v, x + dim * row++);
    if (points_.has_codes()) points_.fit_codes(threads);
    if (points_.size() <= SMALL) {
        find_lists(settings_.neighbours, 1, threads);
    } else {
        refine(list_width_, UPDATE_REACH, threads);
        rescore_lists(threads);
    }
    lists_stale_ = false;
    linked_ = false, threads_ = threads;
}

}  // namespace nngk
