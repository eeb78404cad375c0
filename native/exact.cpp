#include "exact.h"

#include "threads.h"
#include "tree.h"

#include <cmath>
#include <mutex>

namespace nngk {
namespace {

// Candidates kept beyond k while scores come from rounded products; they are re-scored by differences.
constexpr size_t SLACK = 8;
// Fewer queries than this do not fill tiles: scanning the rows costs less than packing.
constexpr size_t FEW = 6;

void write(std::vector<Scored>& found, size_t k, float* d, int64_t* id) {
    std::sort(found.begin(), found.end());
    for (size_t j = 0; j < k; ++j) {
        const bool some = j < found.size();
        d[j] = some ? found[j].first : std::numeric_limits<float>::infinity();
        id[j] = some ? int64_t(found[j].second) : -1;
    }
}

// Calls with (distance, row) for rows ids[0..n), four at a time.
template <class Id, class Take>
void distances_to(const Rows& rows, const float* query, size_t n, Id&& id, Take&& take) {
    for (size_t j = 0; j < n; j += 4) {
        const float* at[4];
        float out[4];
        for (size_t r = 0; r < 4; ++r) at[r] = rows.row(id(std::min(j + r, n - 1)));
        kernels().f32(query, at, rows.padded(), out);
        for (size_t r = 0; r < std::min<size_t>(4, n - j); ++r) take(out[r], id(j + r));
    }
}

}  // namespace

Rows::Rows(const float* x, size_t n, size_t dim) : n_(n), dim_(dim), padded_(rounded(dim, PAD)), data_(x) {
    if (padded_ == dim) return;
    copy_.assign(n * padded_, 0.0f);
    for (size_t i = 0; i < n; ++i) std::memcpy(&copy_[i * padded_], x + i * dim, dim * sizeof(float));
    data_ = copy_.data();
}

ExactIndex::ExactIndex(const float* x, size_t n, size_t dim, int threads) : rows_(x, n, dim), origin_(dim), order_(n) {
    std::vector<double> mean(dim, 0.0);
    for (size_t i = 0; i < n; ++i)
        for (size_t k = 0; k < dim; ++k) mean[k] += double(rows_.row(i)[k]);
    for (size_t k = 0; k < dim; ++k) origin_[k] = float(mean[k] / double(n));
    // Comparing near points first lets the cuts fall at once, and nearly all later products are discarded by the kernel.
    Tree tree;
    tree.build(Matrix{rows_.row(0), rows_.padded()}, n, rows_.padded(), 2 * PANEL, 2 * PANEL, 1, threads);
    order_.swap(tree.order);
    packed_.reset(n, dim, order_.data());
    parallel(packed_.panel_count(), 16, threads, [&](size_t begin, size_t end, int) {
        for (size_t p = begin; p < end; ++p)
            packed_.fill_panel(p, origin_.data(), [&](size_t i) { return rows_.row(order_[i]); });
    });
}

void ExactIndex::all_neighbours(size_t k, int threads, float* distances, int64_t* indices) const {
    const size_t n = rows_.size();
    Lists lists(n, std::min(k + SLACK, n));
    join_all(packed_, lists, threads);
    // In the tree's order duplicates follow each other, and share one scan where they need it.
    parallel(n, 256, threads, [&](size_t begin, size_t end, int) {
        Scan scan;
        for (size_t p = begin; p < end; ++p) {
            const size_t i = order_[p];
            lists.finish(i);
            rescore(rows_.row(i), lists, i, k, int64_t(i), scan, distances + i * k, indices + i * k);
        }
    });
}

void ExactIndex::search(const float* x, size_t count, size_t k, int threads, float* distances, int64_t* indices) const {
    const Rows queries(x, count, rows_.dim());
    if (count < FEW) return scan(queries, k, threads, distances, indices);
    Packed packed;
    packed.fill(count, rows_.dim(), origin_.data(), nullptr, [&](size_t i) { return queries.row(i); });
    Lists lists(count, std::min(k + SLACK, rows_.size()));
    product(packed, lists, threads);
    parallel(count, 16, threads, [&](size_t begin, size_t end, int) {
        Scan scan;
        for (size_t i = begin; i < end; ++i) {
            lists.finish(i);
            rescore(queries.row(i), lists, i, k, -1, scan, distances + i * k, indices + i * k);
        }
    });
}

void ExactIndex::product(const Packed& queries, Lists& lists, int threads) const {
    const size_t width = block_panels(packed_.dim());
    // With few queries the threads share the points instead, and the lists lock their rows.
    const size_t strips = queries.panel_count();
    const bool share_points = strips < size_t(2 * threads);
    const size_t strip = share_points ? strips : std::min<size_t>(width, std::max<size_t>(1, strips / (4 * size_t(threads))));
    const size_t columns = (packed_.panel_count() + width - 1) / width;
    auto block = [&](size_t b) { return Side{&packed_, b * width, std::min((b + 1) * width, packed_.panel_count()), nullptr}; };
    if (share_points) {
        parallel(columns, 1, threads, [&](size_t b, size_t, int) {
            join(Side{&queries, 0, strips, &lists}, block(b), false, true);
        });
        return;
    }
    parallel(strips, strip, threads, [&](size_t begin, size_t end, int) {
        for (size_t b = 0; b < columns; ++b) join(Side{&queries, begin, end, &lists}, block(b), false, false);
    });
}

void ExactIndex::scan(const Rows& queries, size_t k, int threads, float* distances, int64_t* indices) const {
    const size_t n = rows_.size(), keep = std::min(k, n);
    const size_t piece = std::max<size_t>(4096, (n + size_t(threads) - 1) / size_t(std::max(threads, 1)));
    for (size_t q = 0; q < queries.size(); ++q) {
        std::vector<Scored> found;
        std::mutex merging;
        parallel(n, piece, threads, [&](size_t begin, size_t end, int) {
            std::vector<Scored> heap;  // the worst of the best on top
            distances_to(rows_, queries.row(q), end - begin, [&](size_t j) { return uint32_t(begin + j); },
                         [&](float d, uint32_t id) {
                             const Scored one(d, id);
                             if (heap.size() < keep) {
                                 heap.push_back(one), std::push_heap(heap.begin(), heap.end());
                             } else if (one < heap.front()) {
                                 std::pop_heap(heap.begin(), heap.end());
                                 heap.back() = one, std::push_heap(heap.begin(), heap.end());
                             }
                         });
            std::lock_guard<std::mutex> guard(merging);
            found.insert(found.end(), heap.begin(), heap.end());
        });
        write(found, k, distances + q * k, indices + q * k);
    }
}

// The k best of all points, by differences alone.
const std::vector<Scored>& ExactIndex::look_at_all(const float* query, size_t k, Scan& scan) const {
    const size_t bytes = rows_.padded() * sizeof(float);
    if (scan.query.size() == rows_.padded() && !std::memcmp(scan.query.data(), query, bytes)) return scan.best;
    scan.query.assign(query, query + rows_.padded());
    scan.best.clear();
    auto take = [&](float distance, uint32_t point) { scan.best.emplace_back(distance, point); };
    distances_to(rows_, query, rows_.size(), [](size_t j) { return uint32_t(j); }, take);
    k = std::min(k, scan.best.size());
    std::partial_sort(scan.best.begin(), scan.best.begin() + long(k), scan.best.end());
    scan.best.resize(k);
    return scan.best;
}

void ExactIndex::rescore(const float* query, const Lists& lists, size_t i, size_t k, int64_t own, Scan& scan, float* d,
                         int64_t* id) const {
    thread_local std::vector<Scored> found;
    found.clear();
    const uint64_t* keys = lists.keys(i);
    const size_t n = lists.count(i);
    auto take = [&](float distance, uint32_t point) {
        if (int64_t(point) != own) found.emplace_back(distance, point);
    };
    distances_to(rows_, query, n, [&](size_t j) { return key_id(keys[j]); }, take);
    if (n == lists.keep() && n + (own >= 0) < rows_.size()) {
        // Whoever was dropped scored at least the last key. If rounding could have hidden a point as near as the k-th,
        // every point is looked at.
        std::nth_element(found.begin(), found.begin() + long(k) - 1, found.end());
        float norm = 0;
        for (size_t j = 0; j < rows_.dim(); ++j) norm += (query[j] - origin_[j]) * (query[j] - origin_[j]);
        const float last = key_score(keys[n - 1]), kth = found[k - 1].first;
        const float rounding = 1.2e-7f * (4 + std::sqrt(float(rows_.dim()))) * (norm + std::fabs(last));
        if (last - rounding <= kth) {
            found.clear();
            for (const auto& [distance, point] : look_at_all(query, k + 1, scan)) take(distance, point);
        }
    }
    write(found, k, d, id);
}

}  // namespace nngk
