// Reference kernels: what every processor runs and the others are tested against.
#include "kernels.h"

#include <cstring>

namespace nngk {

float from_bf16(uint16_t x) {
    uint32_t bits = uint32_t(x) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

uint16_t to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // round to nearest even
}

float from_f16(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16;
    const uint32_t exponent = (h >> 10) & 31, fraction = h & 0x3ff;
    float f;
    if (exponent == 0) {  // zero and subnormals: the fraction counts in units of 2^-24
        f = float(fraction) * 5.9604644775390625e-8f;
        return sign ? -f : f;
    }
    uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | (fraction << 13);
    std::memcpy(&f, &bits, 4);
    return f;
}

uint16_t to_f16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
    bits &= 0x7fffffff;
    if (bits >= 0x477ff000) return uint16_t(sign | 0x7c00);  // rounds past the largest half: infinity
    if (bits < 0x38800000) {                                 // subnormal: let the float unit round at 2^-24
        float f;
        std::memcpy(&f, &bits, 4);
        f += 0.5f;
        uint32_t rounded;
        std::memcpy(&rounded, &f, 4);
        return uint16_t(sign | (rounded - 0x3f000000));
    }
    bits += 0xfff + ((bits >> 13) & 1);
    return uint16_t(sign | ((bits - 0x38000000) >> 13));
}

namespace {

template <class Row, class Convert>
void distances(const float* q, const Row* const* rows, size_t dim, float* out, Convert convert) {
    for (size_t r = 0; r < 4; ++r) {
        float sum = 0;
        for (size_t i = 0; i < dim; ++i) {
            const float d = q[i] - convert(rows[r][i]);
            sum += d * d;
        }
        out[r] = sum;
    }
}

void f32(const float* q, const float* const* rows, size_t dim, float* out) {
    distances(q, rows, dim, out, [](float x) { return x; });
}
void bf16(const float* q, const uint16_t* const* rows, size_t dim, float* out) {
    distances(q, rows, dim, out, from_bf16);
}
void f16(const float* q, const uint16_t* const* rows, size_t dim, float* out) {
    distances(q, rows, dim, out, from_f16);
}

void i8(const int16_t* q, const int8_t* const* rows, size_t dim, int32_t* out) {
    for (size_t r = 0; r < 4; ++r) {
        int32_t sum = 0;
        for (size_t i = 0; i < dim; ++i) {
            const int32_t d = q[i] - rows[r][i];
            sum += d * d;
        }
        out[r] = sum;
    }
}

bool tile(const Tile& t) {
    uint64_t any = 0;
    for (size_t r = 0; r < TILE_ROWS; ++r) {
        float c[PANEL];
        for (size_t j = 0; j < PANEL; ++j) c[j] = t.a_init[r] + t.b_init[j];
        for (size_t k = 0; k < t.dim; ++k)
            for (size_t j = 0; j < PANEL; ++j) c[j] += t.a[k * TILE_ROWS + r] * t.b[k * PANEL + j];
        uint64_t row = 0, col = 0;
        for (size_t j = 0; j < PANEL; ++j) {
            row |= uint64_t(c[j] >= t.a_cut[r]) << j;
            col |= uint64_t(c[j] >= t.b_cut[j]) << j;
        }
        std::memcpy(t.c + r * PANEL, c, sizeof c);
        t.row_hits[r] = row;
        t.col_hits[r] = col;
        any |= row | col;
    }
    return any != 0;
}

void pack(const float* const* rows, size_t count, size_t dim, float* panel) {
    if (count < PANEL) std::memset(panel, 0, dim * PANEL * sizeof(float));
    for (size_t j = 0; j < count; ++j)
        for (size_t k = 0; k < dim; ++k) panel[k * PANEL + j] = rows[j][k];
}

void strip(const float* panel, size_t dim, const uint32_t* columns, float* out) {
    for (size_t k = 0; k < dim; ++k, panel += PANEL, out += TILE_ROWS)
        for (size_t r = 0; r < TILE_ROWS; ++r) out[r] = panel[columns[r]];
}

}  // namespace

const Kernels& plain_kernels() {
    static const Kernels set{"plain", f32, bf16, f16, i8, tile, pack, strip};
    return set;
}

}  // namespace nngk
