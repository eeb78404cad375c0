// How far a query is from stored points: in byte codes or in the stored vectors. Distances are unsigned integers that
// order as the distances do, so that a candidate fits one 64-bit word.
#pragma once

#include "points.h"

namespace nngk {

inline uint32_t ordered(float distance) {
    uint32_t bits;
    std::memcpy(&bits, &distance, 4);
    return bits;  // not negative, so the bits order as the numbers
}

struct CodeSpace {
    const Points& points;
    Array<int16_t> query;
    explicit CodeSpace(const Points& p) : points(p), query(p.padded()) {}
    void ask_point(size_t i) {
        const int8_t* code = points.code(i);
        for (size_t k = 0; k < points.padded(); ++k) query[k] = code[k];
    }
    void ask(const float* x) { points.encode_query(x, query.data()); }
    void prefetch(size_t i) const {
        const char* at = reinterpret_cast<const char*>(points.code(i));
        for (size_t b = 0; b < points.padded(); b += 64) __builtin_prefetch(at + b);
    }
    void four(const uint32_t* ids, uint32_t* out) const {
        const int8_t* rows[4] = {points.code(ids[0]), points.code(ids[1]), points.code(ids[2]), points.code(ids[3])};
        int32_t d[4];
        kernels().i8(query.data(), rows, points.padded(), d);
        for (int r = 0; r < 4; ++r) out[r] = uint32_t(d[r]);
    }
    static double value(uint32_t d) { return d; }
    double scale() const { return double(points.code_step()) * points.code_step(); }
};

// Storage is a parameter of the type, so that the choice is made once a search and not once a distance.
template <Storage S>
struct VectorSpace {
    const Points& points;
    Array<float> query;
    explicit VectorSpace(const Points& p) : points(p), query(p.padded()) {}
    void ask_point(size_t i) { points.get(i, query.data()); }
    void ask(const float* x) { std::memcpy(query.data(), x, points.padded() * sizeof(float)); }
    const char* at(size_t i) const {
        if constexpr (S == Storage::f32)
            return reinterpret_cast<const char*>(points.f32(i));
        else
            return reinterpret_cast<const char*>(points.half(i));
    }
    void prefetch(size_t i) const {
        for (size_t b = 0; b < points.padded() * (S == Storage::f32 ? 4 : 2); b += 64) __builtin_prefetch(at(i) + b);
    }
    void four(const uint32_t* ids, uint32_t* out) const {
        float d[4];
        measure(ids, d);
        for (int r = 0; r < 4; ++r) out[r] = ordered(d[r]);
    }
    void measure(const uint32_t* ids, float* d) const {
        if constexpr (S == Storage::f32) {
            const float* rows[4] = {points.f32(ids[0]), points.f32(ids[1]), points.f32(ids[2]), points.f32(ids[3])};
            kernels().f32(query.data(), rows, points.padded(), d);
        } else {
            const uint16_t* rows[4] = {points.half(ids[0]), points.half(ids[1]), points.half(ids[2]), points.half(ids[3])};
            (S == Storage::bf16 ? kernels().bf16 : kernels().f16)(query.data(), rows, points.padded(), d);
        }
    }
    static double value(uint32_t d) {
        float f;
        std::memcpy(&f, &d, 4);
        return f;
    }
    double scale() const { return 1; }
};

// Stored vectors that are read from a file, each when it is measured.
struct FileSpace {
    const Points& points;
    Array<float> query;
    mutable Array<float> rows;
    explicit FileSpace(const Points& p) : points(p), query(p.padded()), rows(4 * p.padded()) {}
    void ask_point(size_t i) { points.get(i, query.data()); }
    void ask(const float* x) { std::memcpy(query.data(), x, points.padded() * sizeof(float)); }
    void prefetch(size_t) const {}
    void four(const uint32_t* ids, uint32_t* out) const {
        const float* at[4];
        for (size_t r = 0; r < 4; ++r) {
            at[r] = r && ids[r] == ids[r - 1] ? at[r - 1] : &rows[r * points.padded()];
            if (!r || ids[r] != ids[r - 1]) points.get(ids[r], &rows[r * points.padded()]);
        }
        float d[4];
        kernels().f32(query.data(), at, points.padded(), d);
        for (int r = 0; r < 4; ++r) out[r] = ordered(d[r]);
    }
    static double value(uint32_t d) { return VectorSpace<Storage::f32>::value(d); }
    double scale() const { return 1; }
};

// Calls work(space) with the space of the stored vectors.
template <class Work>
decltype(auto) with_vectors(const Points& points, Work&& work) {
    if (points.on_disk()) return work(FileSpace(points));
    switch (points.storage()) {
        case Storage::bf16: return work(VectorSpace<Storage::bf16>(points));
        case Storage::f16: return work(VectorSpace<Storage::f16>(points));
        default: return work(VectorSpace<Storage::f32>(points));
    }
}

// Calls work(space) with the fastest space there is for walking.
template <class Work>
decltype(auto) with_space(const Points& points, Work&& work) {
    if (points.has_codes()) return work(CodeSpace(points));
    return with_vectors(points, std::forward<Work>(work));
}

// Distances to many points, four at a time with the rows of the next ones on their way: take(distance, id).
template <class Space, class Take>
void measure_all(const Space& space, const uint32_t* ids, size_t n, Take&& take) {
    constexpr size_t AHEAD = 8;
    for (size_t j = 0; j < std::min(n, AHEAD); ++j) space.prefetch(ids[j]);
    size_t j = 0;
    uint32_t out[4];
    for (; j + 4 <= n; j += 4) {
        for (size_t r = j + AHEAD; r < std::min(n, j + AHEAD + 4); ++r) space.prefetch(ids[r]);
        space.four(ids + j, out);
        for (size_t r = 0; r < 4; ++r) take(out[r], ids[j + r]);
    }
    if (j == n) return;
    uint32_t last[4];
    for (size_t r = 0; r < 4; ++r) last[r] = ids[std::min(j + r, n - 1)];
    space.four(last, out);
    for (size_t r = 0; j + r < n; ++r) take(out[r], ids[j + r]);
}

}  // namespace nngk
