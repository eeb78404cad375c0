// From neighbour lists to the graph: the occlusion rule, reverse edges, and edges added where walks get stuck.
#include "fanng.h"

#include "threads.h"

#include <numeric>
#include <random>

namespace nngk {
namespace {

// Longer lists serve all_neighbours; what lies beyond is nearly always occluded.
constexpr size_t CANDIDATES = 64;

// Edges that every vertex has, and that lead to it.
constexpr size_t LEAST = 2;

// Rounds of walks without a better share of arrivals, after which there will be none.
constexpr size_t STANDSTILL = 64;

uint64_t word(uint32_t distance, uint32_t v) { return uint64_t(distance) << 32 | v; }

struct Walk {
    uint32_t start, target, end;
    bool arrived;
};

}  // namespace

// candidates: (distance to the vertex, vertex) words. Keeps a candidate unless a kept one, which is nearer, occludes it:
// a walker that wants q loses nothing by going through r first.
template <class Space>
void Fanng::choose_edges(Space& space, std::vector<uint64_t>& candidates, size_t limit, Ids& kept) const {
    std::sort(candidates.begin(), candidates.end());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
    kept.clear();
    const double relax = double(settings_.alpha) * double(settings_.alpha);
    for (const uint64_t candidate : candidates) {
        const uint32_t q = uint32_t(candidate);
        const double length = Space::value(uint32_t(candidate >> 32));
        space.ask_point(q);
        bool occluded = false;
        for (size_t j = 0; j < kept.size() && !occluded; j += 4) {
            uint32_t ids[4], out[4];
            for (size_t r = 0; r < 4; ++r) ids[r] = kept[std::min(j + r, kept.size() - 1)];
            space.four(ids, out);
            for (uint32_t d : out) occluded |= relax * Space::value(d) < length;
        }
        if (occluded) continue;
        kept.push_back(q);
        if (kept.size() == limit) break;
    }
}

void Fanng::make_graph(int threads) {
    const size_t n = points_.size(), width = list_width_;
    graph_.reset(n, settings_.degree + SPARE);
    parallel(n, 256, threads, [&](size_t begin, size_t end, int) {
        with_space(points_, [&](auto space) {
            std::vector<uint64_t> candidates;
            Ids kept;
            for (size_t v = begin; v < end; ++v) {
                const uint32_t* list = &lists_[v * width];
                const size_t count = size_t(std::find(list, list + std::min<size_t>({width, settings_.neighbours, CANDIDATES}), NONE) - list);
                candidates.clear();
                space.ask_point(v);
                measure_all(space, list, count, [&](uint32_t d, uint32_t w) { candidates.push_back(word(d, w)); });
                choose_edges(space, candidates, settings_.degree, kept);
                graph_.set(v, kept.data(), kept.size());
            }
        });
    });
    link_back(threads);
}

// Every edge is offered to its other end too, under the same rule.
void Fanng::link_back(int threads) {
    const size_t n = points_.size();
    std::vector<uint64_t> start(n + 1, 0);
    for (size_t v = 0; v < n; ++v)
        for (uint32_t e = 0; e < graph_.degree(v); ++e) ++start[graph_.edges(v)[e] + 1];
    for (size_t v = 0; v < n; ++v) start[v + 1] += start[v];
    std::vector<uint32_t> sources(start[n]);
    std::vector<uint64_t> at(start.begin(), start.end() - 1);
    for (size_t v = 0; v < n; ++v)
        for (uint32_t e = 0; e < graph_.degree(v); ++e) sources[at[graph_.edges(v)[e]]++] = uint32_t(v);
    parallel(n, 256, threads, [&](size_t begin, size_t end, int) {
        with_space(points_, [&](auto space) {
            for (size_t v = begin; v < end; ++v) {
                thread_local Ids all;
                all.assign(sources.begin() + long(start[v]), sources.begin() + long(start[v + 1]));
                relink(space, uint32_t(v), all);
            }
        });
    });
}

// Offers vertices to v beside the edges it has.
template <class Space>
void Fanng::relink(Space& space, uint32_t v, const Ids& offered) {
    thread_local std::vector<uint64_t> candidates;
    thread_local Ids kept;
    candidates.clear();
    space.ask_point(v);
    auto take = [&](uint32_t d, uint32_t w) {
        if (w != v && !is_dead(w)) candidates.push_back(word(d, w));
    };
    measure_all(space, graph_.edges(v), graph_.degree(v), take);
    measure_all(space, offered.data(), offered.size(), take);
    choose_edges(space, candidates, settings_.degree, kept);
    graph_.set(v, kept.data(), kept.size());
}

// The paper's construction: walk downhill from a random start to a random target; where a walk gets stuck, add the edge
// that it lacked. Walks of one round see the same graph, so that the result does not depend on the threads.
void Fanng::walk(size_t most_rounds, int threads) {
    const size_t n = points_.size();
    if (n < 2) return void(walk_success_ = 1);
    std::mt19937_64 random(settings_.seed ^ 0x9e3779b97f4a7c15ull);
    std::vector<Walk> walks(std::max<size_t>(1000, n / 16));
    double best = 0;
    size_t best_round = 0;
    for (size_t round = 0;; ++round) {
        for (Walk& w : walks) w = Walk{uint32_t(random() % n), uint32_t(random() % n), 0, false};
        parallel(walks.size(), 64, threads, [&](size_t begin, size_t end, int) {
            with_space(points_, [&](auto space) {
                for (size_t i = begin; i < end; ++i) {
                    space.ask_point(walks[i].target);
                    const auto [stop, distance] = descend(space, walks[i].start);
                    walks[i].end = stop, walks[i].arrived = distance == 0;
                }
            });
        });
        size_t arrived = 0;
        for (const Walk& w : walks) arrived += w.arrived;
        walks_ += walks.size();
        walk_success_ = double(arrived) / double(walks.size());
        if (walk_success_ > best) best = walk_success_, best_round = round;
        // Where vertices have no room left, new edges push out others, and more rounds do not help.
        if (walk_success_ >= double(settings_.success) || round == most_rounds || round - best_round > STANDSTILL) return;
        for (const Walk& w : walks)
            if (!w.arrived) force_edge(w.end, w.target);
    }
}

// Downhill to the vertex that has no neighbour nearer to what the space was asked for.
template <class Space>
std::pair<uint32_t, uint32_t> Fanng::descend(Space& space, uint32_t v) const {
    uint64_t best = 0;
    measure_all(space, &v, 1, [&](uint32_t d, uint32_t w) { best = word(d, w); });
    for (uint64_t here = 0; here != best;) {
        here = best;
        v = uint32_t(here);
        measure_all(space, graph_.edges(v), graph_.degree(v),
                    [&](uint32_t d, uint32_t w) { best = std::min(best, word(d, w)); });
        if (best >> 32 == here >> 32) break;  // equally far is not nearer
    }
    return {v, uint32_t(best >> 32)};
}

// Adds an edge at its place by length and drops the longer ones that it occludes. A vertex without room gives up its
// longest edge, unless that is the new one's fate too: the spare places are for these edges.
void Fanng::force_edge(uint32_t from, uint32_t to) {
    if (from == to) return;
    const uint32_t degree = graph_.degree(from);
    const uint32_t* edges = graph_.edges(from);
    if (std::find(edges, edges + degree, to) != edges + degree) return;
    with_space(points_, [&](auto space) {
        std::vector<uint64_t> row;
        space.ask_point(from);
        measure_all(space, edges, degree, [&](uint32_t d, uint32_t w) { row.push_back(word(d, w)); });
        uint32_t length = 0;
        measure_all(space, &to, 1, [&](uint32_t d, uint32_t) { length = d; });
        const uint64_t mine = word(length, to);
        space.ask_point(to);
        const double relax = double(settings_.alpha) * double(settings_.alpha);
        Ids kept;
        bool placed = false;
        for (const uint64_t other : row) {
            const uint32_t q = uint32_t(other);
            if (other > mine) {
                if (!placed) kept.push_back(to), placed = true;
                bool occluded = false;
                measure_all(space, &q, 1, [&](uint32_t d, uint32_t) {
                    occluded = relax * space.value(d) < space.value(uint32_t(other >> 32));
                });
                if (occluded) continue;
            }
            kept.push_back(q);
        }
        if (!placed) kept.push_back(to);
        if (kept.size() > graph_.capacity()) kept.erase(kept.end() - (kept.back() == to ? 2 : 1));
        graph_.set(from, kept.data(), kept.size());
    });
}

// Each of these vertices gets at least two edges and two that lead to it, as far as there are so many vertices: with a
// single one, a walk that comes by another way misses it.
void Fanng::support(const Ids& which) {
    const size_t n = points_.size(), least = std::min(LEAST, n - std::min(n, dead_count_ + 1));
    // The nearest first; where the lists are short, whatever follows in the order, which keeps neighbours together.
    auto near = [&](uint32_t v, auto&& enough) {
        const uint32_t* list = &lists_[v * list_width_];
        for (size_t j = 0; j < list_width_ && list[j] != NONE && !enough(list[j]); ++j) {}
        for (size_t j = 1; j < n && !enough(uint32_t((v + j) % n)); ++j) {}
    };
    for (const uint32_t v : which) {
        if (is_dead(v)) continue;
        if (graph_.degree(v) < least) near(v, [&](uint32_t w) { return graph_.degree(v) >= least || (insert_edge(v, w), false); });
        for (const bool full : {false, true})
            if (in_[v] < least)
                near(v, [&](uint32_t w) {
                    if (in_[v] < least && (full || graph_.degree(w) < graph_.capacity())) insert_edge(w, v);
                    return in_[v] >= least;
                });
    }
}

Fanng::Ids Fanng::in_degrees() const {
    Ids in(points_.size(), 0);
    for (size_t v = 0; v < graph_.size(); ++v)
        for (uint32_t e = 0; e < graph_.degree(v); ++e) ++in[graph_.edges(v)[e]];
    return in;
}

// After the whole graph was made or mended.
void Fanng::complete() {
    in_ = in_degrees();
    Ids all(points_.size());
    std::iota(all.begin(), all.end(), 0u);
    support(all);
    connect();
}

// Every vertex can be reached from the medoid, so that a search with a large enough pool finds all.
void Fanng::connect() {
    const size_t n = points_.size();
    for (int pass = 0; pass < 4; ++pass) {
        std::vector<uint8_t> reached(n, 0);
        Ids stack;
        auto flood = [&](uint32_t from) {
            reached[from] = 1, stack.push_back(from);
            while (!stack.empty()) {
                const uint32_t v = stack.back();
                stack.pop_back();
                for (uint32_t e = 0; e < graph_.degree(v); ++e) {
                    const uint32_t w = graph_.edges(v)[e];
                    if (!reached[w]) reached[w] = 1, stack.push_back(w);
                }
            }
        };
        flood(medoid_);
        bool added = false;
        Scratch s;
        for (uint32_t v = 0; v < n; ++v) {
            if (reached[v]) continue;
            with_space(points_, [&](auto space) {
                space.ask_point(v);
                best_first(space, graph_, &medoid_, 1, 32, [](uint32_t) { return false; }, NONE, s);
            });
            // The nearest with room, or the nearest that can give up an edge; all are reached from the medoid.
            bool linked = false;
            for (const bool full : {false, true})
                for (size_t j = 0; j < s.pool.size() && !linked; ++j) {
                    const uint32_t from = Pool::vertex(s.pool[j]);
                    if (full || graph_.degree(from) < graph_.capacity()) linked = insert_edge(from, v);
                }
            flood(v);
            added = true;
        }
        if (!added) return;
    }
}

// Adds an edge at its place by length, and returns whether the vertex has it. One without room gives up the longest of
// those whose other end has enough without it.
bool Fanng::insert_edge(uint32_t from, uint32_t to) {
    if (from == to || is_dead(from) || is_dead(to)) return false;
    Ids row(graph_.edges(from), graph_.edges(from) + graph_.degree(from));
    if (std::find(row.begin(), row.end(), to) != row.end()) return true;
    if (row.size() == graph_.capacity()) {
        size_t last = row.size();
        while (last > 0 && in_[row[last - 1]] <= LEAST) --last;
        if (!last) return false;
        --in_[row[last - 1]];
        row.erase(row.begin() + long(last - 1));
    }
    with_space(points_, [&](auto space) {
        space.ask_point(from);
        uint32_t mine = 0;
        measure_all(space, &to, 1, [&](uint32_t d, uint32_t) { mine = d; });
        size_t place = 0;
        measure_all(space, row.data(), row.size(), [&](uint32_t d, uint32_t) { place += d <= mine; });
        row.insert(row.begin() + long(place), to);
    });
    graph_.set(from, row.data(), row.size());
    ++in_[to];
    return true;
}

// The other files use these for every space.
#define NNGK_FOR_SPACE(S)                                                                               \
    template void Fanng::relink(S&, uint32_t, const Ids&);                                              \
    template void Fanng::choose_edges(S&, std::vector<uint64_t>&, size_t, Ids&) const;
NNGK_FOR_SPACE(CodeSpace)
NNGK_FOR_SPACE(VectorSpace<Storage::f32>)
NNGK_FOR_SPACE(VectorSpace<Storage::bf16>)
NNGK_FOR_SPACE(VectorSpace<Storage::f16>)
#undef NNGK_FOR_SPACE

}  // namespace nngk
