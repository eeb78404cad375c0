// From neighbour lists to the graph: the occlusion rule, reverse edges, and edges added where walks get stuck.
#include "fanng.h"

#include "occlusion.h"
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

// Where the number of rounds has a bound, they end sooner if so many of them brought less than this.
constexpr size_t LOOK_BACK = 8;
constexpr double GAIN = 0.03;

// Share of walks that arrive below which the lists left the graph in islands.
constexpr double ISLANDS = 0.65;

}  // namespace

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
                measure_all(space, list, count, [&](uint32_t d, uint32_t w) { candidates.push_back(edge_word(d, w)); });
                choose_edges(space, candidates, settings_.degree, double(settings_.alpha), kept);
                graph_.set(v, kept.data(), kept.size());
            }
        });
    });
    link_back(threads);
}

// Every edge is offered to its other end too, under the same rule.
void Fanng::link_back(int threads) {
    const size_t n = points_.size();
    const Sources sources(graph_);
    parallel(n, 256, threads, [&](size_t begin, size_t end, int) {
        with_space(points_, [&](auto space) {
            for (size_t v = begin; v < end; ++v) relink(space, uint32_t(v), sources.of(v), settings_.degree);
        });
    });
}

// Offers vertices to v beside the edges it has.
template <class Space>
void Fanng::relink(Space& space, uint32_t v, const Ids& offered, size_t limit) {
    thread_local std::vector<uint64_t> candidates;
    thread_local Ids kept;
    candidates.clear();
    space.ask_point(v);
    auto take = [&](uint32_t d, uint32_t w) {
        if (w != v && !is_dead(w)) candidates.push_back(edge_word(d, w));
    };
    measure_all(space, graph_.edges(v), graph_.degree(v), take);
    measure_all(space, offered.data(), offered.size(), take);
    choose_edges(space, candidates, limit, double(settings_.alpha), kept);
    graph_.set(v, kept.data(), kept.size());
}

// Walks downhill from random starts to random targets; returns the share that arrives. Walks of one round see the same
// graph, so that the result does not depend on the threads.
double Fanng::try_walks(std::vector<Walk>& walks, std::mt19937_64& random, int threads) {
    const size_t n = points_.size();
    walks.resize(std::max<size_t>(1000, n / 16));
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
    walks_ += walks.size();
    return double(std::count_if(walks.begin(), walks.end(), [](const Walk& w) { return w.arrived; })) / double(walks.size());
}

// The paper's construction: where a walk gets stuck, the edge that it lacked is added, and so on until enough arrive or
// more walks no longer help. Where hardly any arrive at first, the graph is joined by long edges before.
void Fanng::walk(size_t most_rounds, int threads) {
    if (points_.size() < 2) return void(walk_success_ = 1);
    std::mt19937_64 random(settings_.seed ^ 0x9e3779b97f4a7c15ull);
    std::vector<Walk> walks;
    std::vector<double> shares(1, try_walks(walks, random, threads));
    if (shares[0] < ISLANDS) {
        bridge(threads);
        shares[0] = try_walks(walks, random, threads);
    }
    size_t best = 0;
    for (size_t round = 0;; ++round) {
        const double share = walk_success_ = shares[round];
        if (share > shares[best]) best = round;
        if (share >= double(settings_.success) || round == most_rounds) return;
        // Where vertices have no room left, new edges push out others, and more rounds do not help.
        if (round - best > STANDSTILL) return;
        if (most_rounds < AS_MANY && round >= LOOK_BACK && share - shares[round - LOOK_BACK] < GAIN) return;
        for (const Walk& w : walks)
            if (!w.arrived) force_edge(w.end, w.target);
        shares.push_back(try_walks(walks, random, threads));
    }
}

// Downhill to the vertex that has no neighbour nearer to what the space was asked for.
template <class Space>
std::pair<uint32_t, uint32_t> Fanng::descend(Space& space, uint32_t v) const {
    uint64_t best = 0;
    measure_all(space, &v, 1, [&](uint32_t d, uint32_t w) { best = edge_word(d, w); });
    for (uint64_t here = 0; here != best;) {
        here = best;
        v = uint32_t(here);
        measure_all(space, graph_.edges(v), graph_.degree(v),
                    [&](uint32_t d, uint32_t w) { best = std::min(best, edge_word(d, w)); });
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
        measure_all(space, edges, degree, [&](uint32_t d, uint32_t w) { row.push_back(edge_word(d, w)); });
        uint32_t length = 0;
        measure_all(space, &to, 1, [&](uint32_t d, uint32_t) { length = d; });
        const uint64_t mine = edge_word(length, to);
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
#define NNGK_FOR_SPACE(S) template void Fanng::relink(S&, uint32_t, const Ids&, size_t);
NNGK_FOR_SPACE(CodeSpace)
NNGK_FOR_SPACE(FileSpace)
NNGK_FOR_SPACE(VectorSpace<Storage::f32>)
NNGK_FOR_SPACE(VectorSpace<Storage::bf16>)
NNGK_FOR_SPACE(VectorSpace<Storage::f16>)
#undef NNGK_FOR_SPACE

}  // namespace nngk
