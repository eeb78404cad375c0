// Compiled with AVX2, FMA and F16C. Includes no standard containers, so that no inline function compiled with these
// instructions can be picked by the linker for processors that lack them.
#include "kernels.h"

#include <immintrin.h>

namespace nngk {
namespace {

// The sums of four vectors at once: with few dimensions, one after the other they take longer than the products.
inline __m128 totals(const __m256* v) {
    const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
inline __m128i totals(const __m256i* v) {
    const __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

inline __m256 load(const float* x) { return _mm256_loadu_ps(x); }
struct AsBf16 {
    static __m256 load(const uint16_t* x) {
        const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
};
struct AsF16 {
    static __m256 load(const uint16_t* x) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    }
};
struct AsF32 {
    static __m256 load(const float* x) { return _mm256_loadu_ps(x); }
};

template <class As, class Row>
void distances(const float* q, const Row* const* rows, size_t dim, float* out) {
    __m256 s[4][2];
    for (auto& row : s) row[0] = row[1] = _mm256_setzero_ps();
    for (size_t i = 0; i < dim; i += 16) {
        const __m256 q0 = load(q + i), q1 = load(q + i + 8);
        for (int r = 0; r < 4; ++r) {
            const __m256 d0 = _mm256_sub_ps(q0, As::load(rows[r] + i));
            const __m256 d1 = _mm256_sub_ps(q1, As::load(rows[r] + i + 8));
            s[r][0] = _mm256_fmadd_ps(d0, d0, s[r][0]);
            s[r][1] = _mm256_fmadd_ps(d1, d1, s[r][1]);
        }
    }
    __m256 sum[4];
    for (int r = 0; r < 4; ++r) sum[r] = _mm256_add_ps(s[r][0], s[r][1]);
    _mm_storeu_ps(out, totals(sum));
}

void f32(const float* q, const float* const* rows, size_t dim, float* out) { distances<AsF32>(q, rows, dim, out); }
void bf16(const float* q, const uint16_t* const* rows, size_t dim, float* out) {
    distances<AsBf16>(q, rows, dim, out);
}
void f16(const float* q, const uint16_t* const* rows, size_t dim, float* out) { distances<AsF16>(q, rows, dim, out); }

void i8(const int16_t* q, const int8_t* const* rows, size_t dim, int32_t* out) {
    __m256i s[4];
    for (auto& v : s) v = _mm256_setzero_si256();
    for (size_t i = 0; i < dim; i += 16) {
        const __m256i query = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + i));
        for (int r = 0; r < 4; ++r) {
            const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + i)));
            const __m256i d = _mm256_sub_epi16(query, x);
            s[r] = _mm256_add_epi32(s[r], _mm256_madd_epi16(d, d));
        }
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), totals(s));
}

// 4 rows by 24 columns: twelve accumulators, three columns and a broadcast fill the sixteen registers.
void quarter(const Tile& t, size_t row, size_t col) {
    __m256 c[4][3];
    for (int r = 0; r < 4; ++r)
        for (int v = 0; v < 3; ++v)
            c[r][v] = _mm256_add_ps(_mm256_set1_ps(t.a_init[row + r]), load(t.b_init + col + 8 * v));
    const float* a = t.a + row;
    const float* b = t.b + col;
    for (size_t k = 0; k < t.dim; ++k, a += TILE_ROWS, b += PANEL) {
        const __m256 b0 = load(b), b1 = load(b + 8), b2 = load(b + 16);
        for (int r = 0; r < 4; ++r) {
            const __m256 x = _mm256_broadcast_ss(a + r);
            c[r][0] = _mm256_fmadd_ps(x, b0, c[r][0]);
            c[r][1] = _mm256_fmadd_ps(x, b1, c[r][1]);
            c[r][2] = _mm256_fmadd_ps(x, b2, c[r][2]);
        }
    }
    for (int r = 0; r < 4; ++r) {
        const __m256 cut = _mm256_set1_ps(t.a_cut[row + r]);
        for (int v = 0; v < 3; ++v) {
            const size_t at = col + 8 * v;
            _mm256_storeu_ps(t.c + (row + r) * PANEL + at, c[r][v]);
            const int rows = _mm256_movemask_ps(_mm256_cmp_ps(c[r][v], cut, _CMP_GE_OQ));
            const int cols = _mm256_movemask_ps(_mm256_cmp_ps(c[r][v], load(t.b_cut + at), _CMP_GE_OQ));
            t.row_hits[row + r] |= uint64_t(rows) << at;
            t.col_hits[row + r] |= uint64_t(cols) << at;
        }
    }
}

bool tile(const Tile& t) {
    for (size_t r = 0; r < TILE_ROWS; ++r) t.row_hits[r] = t.col_hits[r] = 0;
    for (size_t col = 0; col < PANEL; col += 24)
        for (size_t row = 0; row < TILE_ROWS; row += 4) quarter(t, row, col);
    uint64_t any = 0;
    for (size_t r = 0; r < TILE_ROWS; ++r) any |= t.row_hits[r] | t.col_hits[r];
    return any != 0;
}

// Eight rows by eight columns, transposed in registers.
void transpose(const float* const* rows, size_t k, float* out) {
    __m256 r[8], u[8];
    for (int i = 0; i < 8; ++i) r[i] = load(rows[i] + k);
    for (int i = 0; i < 8; i += 2) {
        u[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        u[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(u[i], u[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(u[i], u[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(u[i + 1], u[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(u[i + 1], u[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(out + i * PANEL, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(out + (i + 4) * PANEL, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

void pack(const float* const* rows, size_t count, size_t dim, float* panel) {
    size_t j = 0;
    for (; j + 8 <= count; j += 8)
        for (size_t k = 0; k < dim; k += 8) transpose(rows + j, k, panel + k * PANEL + j);
    for (size_t k = 0; k < dim; ++k)
        for (size_t i = j; i < PANEL; ++i) panel[k * PANEL + i] = i < count ? rows[i][k] : 0.0f;
}

void strip(const float* panel, size_t dim, const uint32_t* columns, float* out) {
    for (size_t k = 0; k < dim; ++k, panel += PANEL, out += TILE_ROWS)
        for (size_t r = 0; r < TILE_ROWS; ++r) out[r] = panel[columns[r]];
}

}  // namespace

const Kernels& avx2_kernels() {
    static const Kernels set{"avx2", f32, bf16, f16, i8, tile, pack, strip};
    return set;
}

}  // namespace nngk
