// The few loops that take all the time, in three instruction sets chosen once at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nngk {

// A tile of the product of two packed blocks: 8 rows against one panel of 48 columns. The packed layout is the same
// for every instruction set, so that packing and selection know nothing of it.
constexpr size_t TILE_ROWS = 8;
constexpr size_t PANEL = 48;
// Rows are padded with zeros to a multiple of this many elements, so that no loop needs a tail.
constexpr size_t PAD = 32;

struct Tile {
    const float* a;      // (dim, 8) packed rows
    const float* b;      // (dim, 48) packed columns
    size_t dim;
    const float* a_init; // (8) -|a|²/2
    const float* b_init; // (48) -|b|²/2
    const float* a_cut;  // (8) what a value must reach to be a hit of its row
    const float* b_cut;  // (48) and of its column
    float* c;            // (8, 48) a·b - |a|²/2 - |b|²/2 = -(squared distance)/2, written where there is a hit
    uint64_t* row_hits;  // (8) bit j: c[r][j] >= a_cut[r]
    uint64_t* col_hits;  // (8) bit j: c[r][j] >= b_cut[j]
};

struct Kernels {
    const char* name;
    // Squared distances of a query to four rows at a time; dim is a multiple of PAD.
    void (*f32)(const float* q, const float* const* rows, size_t dim, float* out);
    void (*bf16)(const float* q, const uint16_t* const* rows, size_t dim, float* out);
    void (*f16)(const float* q, const uint16_t* const* rows, size_t dim, float* out);
    void (*i8)(const int16_t* q, const int8_t* const* rows, size_t dim, int32_t* out);
    // Returns whether any value of the tile is a hit.
    bool (*tile)(const Tile& tile);
    // Transposes up to 48 rows into a panel (dim, 48); absent rows are zero.
    void (*pack)(const float* const* rows, size_t count, size_t dim, float* panel);
    // Eight columns of a panel as the rows of a tile, (dim, 8).
    void (*strip)(const float* panel, size_t dim, const uint32_t* columns, float* out);
};

const Kernels& plain_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

// The best set that this processor runs; the environment variable NNGK_KERNELS (plain, avx2, avx512) overrules it.
const Kernels& kernels();
// For tests: the set of that name, or nullptr where it cannot run.
const Kernels* kernels_named(const char* name);

uint16_t to_bf16(float x);
uint16_t to_f16(float x);
float from_bf16(uint16_t x);
float from_f16(uint16_t x);

}  // namespace nngk
