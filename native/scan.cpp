// The exact neighbours of some indexed points, which tell how good other answers are.
#include "fanng.h"

#include "threads.h"

#include <mutex>

namespace nngk {
namespace {

constexpr size_t BLOCK = 512;   // points that are measured for all who ask while they are in a core's cache
constexpr size_t SCANNED = 8;   // times as many as are wanted are measured on vectors that stay in a file

}  // namespace

void Fanng::scan_points(const int64_t* ids, size_t n, size_t k, int threads, float* distances, int64_t* indices) const {
    std::shared_lock<FairMutex> reading(lock_);
    Ids all;
    for (uint32_t v = 0; v < points_.size(); ++v)
        if (!is_dead(v)) all.push_back(v);
    if (points_.on_disk()) return scan_file(all, ids, n, k, threads, distances, indices);
    Lists best(n, k);
    parallel(all.size(), BLOCK, threads, [&](size_t begin, size_t end, int) {
        with_vectors(points_, [&](auto space) {
            for (size_t i = 0; i < n; ++i) {
                const uint32_t own = vertex_of(ids[i]);
                if (own == NONE) continue;
                space.ask_point(own);
                measure_all(space, &all[begin], end - begin, [&](uint32_t d, uint32_t v) {
                    const float value = float(-space.value(d) / 2);
                    if (v != own && value >= best.cut(i)) best.add_locked(i, value, label_[v]);
                });
            }
        });
    });
    for (size_t i = 0; i < n; ++i) {
        best.finish(i);
        for (size_t j = 0; j < k; ++j) {
            const bool some = j < best.count(i);
            distances[i * k + j] = some ? key_score(best.keys(i)[j]) : std::numeric_limits<float>::infinity();
            indices[i * k + j] = some ? int64_t(key_id(best.keys(i)[j])) : -1;
        }
    }
}

// Where vectors are read from a file, not every one is: those that the codes put far behind are not among the nearest.
void Fanng::scan_file(const Ids& all, const int64_t* ids, size_t n, size_t k, int threads, float* distances, int64_t* indices) const {
    parallel(n, 1, threads, [&](size_t i, size_t, int) {
        const uint32_t own = vertex_of(ids[i]);
        std::vector<uint64_t> words;
        auto measure = [&](auto space, const Ids& which) {
            words.clear();
            space.ask_point(own);
            measure_all(space, which.data(), which.size(), [&](uint32_t d, uint32_t v) {
                if (v != own) words.push_back(uint64_t(d) << 32 | v);
            });
        };
        Ids near;
        if (own != NONE && points_.has_codes()) {
            measure(CodeSpace(points_), all);
            near.resize(std::min(words.size(), SCANNED * k + SCANNED));
            std::partial_sort(words.begin(), words.begin() + long(near.size()), words.end());
            for (size_t j = 0; j < near.size(); ++j) near[j] = uint32_t(words[j]);
        }
        if (own != NONE) measure(FileSpace(points_), points_.has_codes() ? near : all);
        for (uint64_t& word : words) word = word >> 32 << 32 | label_[uint32_t(word)];
        write_row(words, k, distances + i * k, indices + i * k);
    });
}

}  // namespace nngk
