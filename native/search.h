// Walking the graph towards a query.
#pragma once

#include "space.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace nngk {

// Edges of a vertex: how many, then the vertices they lead to, by increasing length; a row begins on a cache line.
class Graph {
public:
    static size_t stride_for(size_t capacity) { return rounded(capacity + 1, 16); }
    void reset(size_t n, size_t capacity) {
        stride_ = stride_for(capacity);
        edges_.assign(n * stride_, 0u);
        n_ = n;
    }
    void grow(size_t n) {
        edges_.resize(n * stride_);
        std::fill(edges_.data() + n_ * stride_, edges_.data() + n * stride_, 0u);
        n_ = n;
    }
    size_t size() const { return n_; }
    size_t stride() const { return stride_; }
    size_t capacity() const { return stride_ - 1; }
    uint32_t degree(size_t v) const { return edges_[v * stride_]; }
    const uint32_t* edges(size_t v) const { return edges_.data() + v * stride_ + 1; }
    void set(size_t v, const uint32_t* to, size_t count) {
        uint32_t* row = edges_.data() + v * stride_;
        row[0] = uint32_t(count);
        std::copy(to, to + count, row + 1);
    }
    void prefetch(size_t v) const {
        const char* at = reinterpret_cast<const char*>(edges_.data() + v * stride_);
        for (size_t b = 0; b < stride_ * 4; b += 64) __builtin_prefetch(at + b);
    }
    Buffer<uint32_t>& buffer() { return edges_; }
    void restore(size_t n, size_t stride) { n_ = n, stride_ = stride; }

private:
    Buffer<uint32_t> edges_;
    size_t n_ = 0, stride_ = 16;
};

// Marks of the vertices seen in one search: a bit each, so that they stay in the first-level cache.
class Seen {
public:
    void reset(size_t n) {
        const size_t words = (n + 63) / 64;
        if (bits_.size() < words) bits_.resize(words, 0), touched_.resize(words + 1);
        for (size_t j = 0; j < count_; ++j) bits_[touched_[j]] = 0;
        count_ = 0;
    }
    // Marks v; returns whether it is new. No branch: whether it is new is what no processor could foretell.
    bool add(uint32_t v) {
        uint64_t& word = bits_[v >> 6];
        const uint64_t bit = uint64_t(1) << (v & 63);
        const bool fresh = !(word & bit);
        touched_[count_] = v >> 6;
        count_ += word == 0;
        word |= bit;
        return fresh;
    }

private:
    std::vector<uint64_t> bits_;
    std::vector<uint32_t> touched_;  // words that are not zero, and a place for one that is looked at
    size_t count_ = 0;
};

// The best candidates of a search, in order. A word is distance, vertex, and whether its edges were followed.
class Pool {
public:
    static uint64_t word(uint32_t distance, uint32_t v) { return uint64_t(distance) << 32 | uint64_t(v) << 1; }
    static uint32_t vertex(uint64_t word) { return uint32_t(word) >> 1; }
    static uint32_t distance(uint64_t word) { return uint32_t(word >> 32); }

    void reset(size_t capacity) {
        words_.resize(std::max(capacity + 1, words_.size()));
        size_ = next_ = 0, capacity_ = capacity;
    }
    size_t size() const { return size_; }
    uint64_t operator[](size_t i) const { return words_[i]; }
    bool full() const { return size_ >= capacity_; }
    uint64_t worst() const { return words_[size_ - 1]; }

    // extra: the vertex is a removed one; it guides the walk but takes no place of a result.
    void insert(uint64_t word, bool extra = false) {
        if (full() && word >= worst() && !extra) return;
        if (extra) {
            if (full() && word >= worst()) return;
            ++capacity_;
            if (words_.size() < capacity_ + 1) words_.resize(2 * capacity_);
        }
        const size_t at = place(word);
        std::memmove(&words_[at + 1], &words_[at], (size_ - at) * sizeof(uint64_t));
        words_[at] = word;
        if (size_ < capacity_) ++size_;
        next_ = std::min(next_, at);
    }
    // The nearest vertex whose edges were not followed yet, or NONE.
    uint32_t follow() {
        while (next_ < size_ && (words_[next_] & 1)) ++next_;
        if (next_ == size_) return NONE;
        words_[next_] |= 1;
        return vertex(words_[next_]);
    }
    uint32_t peek() const { return next_ + 1 < size_ ? vertex(words_[next_ + 1]) : NONE; }

private:
    // Where a word belongs: a search by halves without branches, which no processor could foretell.
    size_t place(uint64_t word) const {
        const uint64_t* low = words_.data();
        size_t left = size_;
        while (left > 1) {
            const size_t half = left / 2;
            low += size_t(low[half - 1] < word) * half;
            left -= half;
        }
        return size_t(low - words_.data()) + size_t(left && *low < word);
    }

    std::vector<uint64_t> words_;
    size_t size_ = 0, next_ = 0, capacity_ = 0;
};

struct Scratch {
    Seen seen;
    Pool pool;
    std::vector<uint32_t> fresh;
    uint64_t distances = 0;
};

// Best-first search: follow the edges of the nearest vertex not followed yet, until the pool holds no such vertex.
// dead(v): v was removed, and is a way but no result; avoid: a vertex that is not even a way, or NONE.
template <class Space, class Dead>
void best_first(const Space& space, const Graph& graph, const uint32_t* entries, size_t count, size_t ef, Dead&& dead,
                uint32_t avoid, Scratch& s) {
    s.seen.reset(graph.size());
    if (avoid != NONE) s.seen.add(avoid);
    s.pool.reset(ef);
    auto take = [&](uint32_t d, uint32_t v) { s.pool.insert(Pool::word(d, v), dead(v)); };
    s.fresh.resize(std::max(count, graph.capacity()) + 1);
    uint32_t* const fresh = s.fresh.data();
    size_t found = 0;
    for (size_t i = 0; i < count; ++i) fresh[found] = entries[i], found += s.seen.add(entries[i]);
    for (;;) {
        s.distances += found;
        measure_all(space, fresh, found, take);
        const uint32_t v = s.pool.follow();
        if (v == NONE) return;
        const uint32_t after = s.pool.peek();
        if (after != NONE) graph.prefetch(after);
        const uint32_t* edges = graph.edges(v);
        found = 0;
        for (uint32_t e = 0, n = graph.degree(v); e < n; ++e) fresh[found] = edges[e], found += s.seen.add(edges[e]);
    }
}

// The paper's search: from the nearest vertex follow one edge, come back to it or go on from the new vertex, whichever
// is nearer, until the budget of distance computations is spent. The pool holds the best `keep` at the end.
template <class Space, class Dead>
void backtrack(const Space& space, const Graph& graph, const uint32_t* entries, size_t count, size_t keep,
               uint64_t budget, Dead&& dead, uint32_t avoid, Scratch& s) {
    struct Step {
        uint32_t distance, v, edge;
        bool operator<(const Step& o) const { return std::tie(distance, v) > std::tie(o.distance, o.v); }
    };
    s.seen.reset(graph.size());
    if (avoid != NONE) s.seen.add(avoid);
    s.pool.reset(keep);
    std::priority_queue<Step> queue;
    uint64_t used = 0;
    auto take = [&](uint32_t d, uint32_t v) {
        s.pool.insert(Pool::word(d, v), dead(v));
        queue.push(Step{d, v, 0});
    };
    s.fresh.clear();
    for (size_t i = 0; i < count && s.fresh.size() < budget; ++i)
        if (s.seen.add(entries[i])) s.fresh.push_back(entries[i]);
    used = s.fresh.size();
    measure_all(space, s.fresh.data(), s.fresh.size(), take);
    while (used < budget && !queue.empty()) {
        Step step = queue.top();
        queue.pop();
        const uint32_t* edges = graph.edges(step.v);
        const uint32_t degree = graph.degree(step.v);
        while (step.edge < degree && !s.seen.add(edges[step.edge])) ++step.edge;
        if (step.edge == degree) continue;
        const uint32_t to = edges[step.edge++];
        queue.push(step);
        measure_all(space, &to, 1, take);
        ++used;
    }
    s.distances += used;
}

}  // namespace nngk
