// The rule by which edges are chosen: an edge p→q is left out where a shorter edge p→r leads nearer to q.
#pragma once

#include "space.h"

#include <algorithm>
#include <vector>

namespace nngk {

inline uint64_t edge_word(uint32_t distance, uint32_t v) { return uint64_t(distance) << 32 | v; }

// candidates: (distance to the vertex, vertex) words. Keeps a candidate unless a kept one, which is nearer, occludes it:
// a walker that wants q loses nothing by going through r first. alpha: how much nearer r must be to q than p is.
template <class Space>
void choose_edges(Space& space, std::vector<uint64_t>& candidates, size_t limit, double alpha, std::vector<uint32_t>& kept) {
    std::sort(candidates.begin(), candidates.end());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
    kept.clear();
    const double relax = alpha * alpha;
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

// Who has an edge to each vertex.
struct Sources {
    std::vector<uint64_t> start;
    std::vector<uint32_t> from;

    template <class G>
    explicit Sources(const G& graph) : start(graph.size() + 1, 0) {
        const size_t n = graph.size();
        for (size_t v = 0; v < n; ++v)
            for (uint32_t e = 0; e < graph.degree(v); ++e) ++start[graph.edges(v)[e] + 1];
        for (size_t v = 0; v < n; ++v) start[v + 1] += start[v];
        from.resize(start[n]);
        std::vector<uint64_t> at(start.begin(), start.end() - 1);
        for (size_t v = 0; v < n; ++v)
            for (uint32_t e = 0; e < graph.degree(v); ++e) from[at[graph.edges(v)[e]]++] = uint32_t(v);
    }
    std::vector<uint32_t> of(size_t v) const { return {from.begin() + long(start[v]), from.begin() + long(start[v + 1])}; }
};

}  // namespace nngk
