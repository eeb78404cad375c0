// Compiled with AVX-512 F, BW, VL and DQ; see kernels_avx2.cpp for why it includes so little.
#include "kernels.h"

#include <immintrin.h>

namespace nngk {
namespace {

// The sums of four vectors at once: with few dimensions, one after the other they take longer than the products.
inline __m128 totals(const __m512* v) {
    __m256 h[4];
    for (int r = 0; r < 4; ++r) h[r] = _mm256_add_ps(_mm512_castps512_ps256(v[r]), _mm512_extractf32x8_ps(v[r], 1));
    const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(h[0], h[1]), _mm256_hadd_ps(h[2], h[3]));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
inline __m128i totals(const __m512i* v) {
    __m256i h[4];
    for (int r = 0; r < 4; ++r) h[r] = _mm256_add_epi32(_mm512_castsi512_si256(v[r]), _mm512_extracti64x4_epi64(v[r], 1));
    const __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(h[0], h[1]), _mm256_hadd_epi32(h[2], h[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

struct AsF32 {
    static __m512 load(const float* x) { return _mm512_loadu_ps(x); }
};
struct AsBf16 {
    static __m512 load(const uint16_t* x) {
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
        return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
    }
};
struct AsF16 {
    static __m512 load(const uint16_t* x) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
    }
};

template <class As, class Row>
void distances(const float* q, const Row* const* rows, size_t dim, float* out) {
    __m512 s[4][2];
    for (auto& row : s) row[0] = row[1] = _mm512_setzero_ps();
    for (size_t i = 0; i < dim; i += 32) {
        const __m512 q0 = _mm512_loadu_ps(q + i), q1 = _mm512_loadu_ps(q + i + 16);
        for (int r = 0; r < 4; ++r) {
            const __m512 d0 = _mm512_sub_ps(q0, As::load(rows[r] + i));
            const __m512 d1 = _mm512_sub_ps(q1, As::load(rows[r] + i + 16));
            s[r][0] = _mm512_fmadd_ps(d0, d0, s[r][0]);
            s[r][1] = _mm512_fmadd_ps(d1, d1, s[r][1]);
        }
    }
    __m512 sum[4];
    for (int r = 0; r < 4; ++r) sum[r] = _mm512_add_ps(s[r][0], s[r][1]);
    _mm_storeu_ps(out, totals(sum));
}

void f32(const float* q, const float* const* rows, size_t dim, float* out) { distances<AsF32>(q, rows, dim, out); }
void bf16(const float* q, const uint16_t* const* rows, size_t dim, float* out) {
    distances<AsBf16>(q, rows, dim, out);
}
void f16(const float* q, const uint16_t* const* rows, size_t dim, float* out) { distances<AsF16>(q, rows, dim, out); }

void i8(const int16_t* q, const int8_t* const* rows, size_t dim, int32_t* out) {
    __m512i s[4];
    for (auto& v : s) v = _mm512_setzero_si512();
    for (size_t i = 0; i < dim; i += 32) {
        const __m512i query = _mm512_loadu_si512(q + i);
        for (int r = 0; r < 4; ++r) {
            const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[r] + i));
            const __m512i d = _mm512_sub_epi16(query, _mm512_cvtepi8_epi16(x));
            s[r] = _mm512_add_epi32(s[r], _mm512_madd_epi16(d, d));
        }
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), totals(s));
}

// 24 accumulators, three columns and a broadcast from memory: enough independent sums to hide the latency of FMA.
bool tile(const Tile& t) {
    __m512 c[8][3];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r)
#pragma GCC unroll 3
        for (int v = 0; v < 3; ++v)
            c[r][v] = _mm512_add_ps(_mm512_set1_ps(t.a_init[r]), _mm512_loadu_ps(t.b_init + 16 * v));
    const float* a = t.a;
    const float* b = t.b;
    for (size_t k = 0; k < t.dim; ++k, a += TILE_ROWS, b += PANEL) {
        const __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16), b2 = _mm512_loadu_ps(b + 32);
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) {
            const __m512 x = _mm512_set1_ps(a[r]);
            c[r][0] = _mm512_fmadd_ps(x, b0, c[r][0]);
            c[r][1] = _mm512_fmadd_ps(x, b1, c[r][1]);
            c[r][2] = _mm512_fmadd_ps(x, b2, c[r][2]);
        }
    }
    const __m512 k0 = _mm512_loadu_ps(t.b_cut), k1 = _mm512_loadu_ps(t.b_cut + 16), k2 = _mm512_loadu_ps(t.b_cut + 32);
    uint64_t any = 0;
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
        const __m512 cut = _mm512_set1_ps(t.a_cut[r]);
        const uint64_t row = uint64_t(_mm512_cmp_ps_mask(c[r][0], cut, _CMP_GE_OQ)) |
                             uint64_t(_mm512_cmp_ps_mask(c[r][1], cut, _CMP_GE_OQ)) << 16 |
                             uint64_t(_mm512_cmp_ps_mask(c[r][2], cut, _CMP_GE_OQ)) << 32;
        const uint64_t col = uint64_t(_mm512_cmp_ps_mask(c[r][0], k0, _CMP_GE_OQ)) |
                             uint64_t(_mm512_cmp_ps_mask(c[r][1], k1, _CMP_GE_OQ)) << 16 |
                             uint64_t(_mm512_cmp_ps_mask(c[r][2], k2, _CMP_GE_OQ)) << 32;
        t.row_hits[r] = row;
        t.col_hits[r] = col;
        any |= row | col;
        if (row | col) {
            _mm512_storeu_ps(t.c + r * PANEL, c[r][0]);
            _mm512_storeu_ps(t.c + r * PANEL + 16, c[r][1]);
            _mm512_storeu_ps(t.c + r * PANEL + 32, c[r][2]);
        }
    }
    return any != 0;
}

// Sixteen rows by sixteen columns, transposed in registers: pairs, then fours, then quarters of a register.
void transpose(const float* const* rows, size_t k, float* out) {
    __m512 r[16], u[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(rows[i] + k);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        u[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        u[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_shuffle_ps(u[i], u[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(u[i], u[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(u[i + 1], u[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(u[i + 1], u[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m512 a = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88), b = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        const __m512 c = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        const __m512 d = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
        _mm512_storeu_ps(out + i * PANEL, _mm512_shuffle_f32x4(a, c, 0x88));
        _mm512_storeu_ps(out + (i + 4) * PANEL, _mm512_shuffle_f32x4(b, d, 0x88));
        _mm512_storeu_ps(out + (i + 8) * PANEL, _mm512_shuffle_f32x4(a, c, 0xdd));
        _mm512_storeu_ps(out + (i + 12) * PANEL, _mm512_shuffle_f32x4(b, d, 0xdd));
    }
}

void pack(const float* const* rows, size_t count, size_t dim, float* panel) {
    size_t j = 0;
    for (; j + 16 <= count; j += 16)
        for (size_t k = 0; k < dim; k += 16) transpose(rows + j, k, panel + k * PANEL + j);
    for (size_t k = 0; k < dim && j < PANEL; ++k)
        for (size_t i = j; i < PANEL; ++i) panel[k * PANEL + i] = i < count ? rows[i][k] : 0.0f;
}

// Two permutations take the place of eight loads and stores.
void strip(const float* panel, size_t dim, const uint32_t* columns, float* out) {
    const __m512i at = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(columns)));
    const __mmask16 last = _mm512_cmpge_epu32_mask(at, _mm512_set1_epi32(32));
    for (size_t k = 0; k < dim; ++k, panel += PANEL, out += TILE_ROWS) {
        const __m512 front = _mm512_permutex2var_ps(_mm512_loadu_ps(panel), at, _mm512_loadu_ps(panel + 16));
        const __m512 all = _mm512_mask_permutexvar_ps(front, last, at, _mm512_loadu_ps(panel + 32));
        _mm256_storeu_ps(out, _mm512_castps512_ps256(all));
    }
}

}  // namespace

const Kernels& avx512_kernels() {
    static const Kernels set{"avx512", f32, bf16, f16, i8, tile, pack, strip};
    return set;
}

}  // namespace nngk
