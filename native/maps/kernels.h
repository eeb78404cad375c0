// The two loops in which a network of separable convolutions spends its time, in three instruction sets. Maps are rows
// of pixels, and a pixel's channels are padded with zeros to a multiple of PANEL: the same for every instruction set.
#pragma once

#include <cstddef>

namespace nngk::maps {

constexpr size_t PANEL = 16;

inline size_t padded(size_t channels) { return (channels + PANEL - 1) / PANEL * PANEL; }

// What becomes of a sum: it is kept between two bounds.
struct Bounds {
    float low, high;
};

// out[p] = bounded(bias + Σ a[p][k] weight[k]) + beside[p] for so many pixels p.
struct Product {
    const float* a;       // (pixels, stride)
    size_t stride, depth; // of which so many channels count
    const float* weight;  // (panels, depth, PANEL)
    const float* bias;    // (panels, PANEL)
    size_t panels;        // of a pixel of the result
    size_t begin, end;    // those of them that are computed
    const float* beside;  // (pixels, panels, PANEL) or null
    float* out;           // (pixels, panels, PANEL)
    Bounds bounds;
};

// One row of a convolution of each channel by itself.
struct Depthwise {
    const float* const* rows;  // (kernel) of the map above, null beyond its edges
    size_t width, channels;
    size_t begin, end;         // the channels that are computed: whole panels
    size_t kernel, stride, left;
    const float* weight;       // (channels / PANEL, kernel, kernel, PANEL)
    const float* bias;         // (channels)
    float* out;                // (out_width, channels)
    size_t out_width;
    Bounds bounds;
};

struct Kernels {
    const char* name;
    void (*product)(const Product&, size_t pixels);
    void (*depthwise)(const Depthwise&);
};

const Kernels& plain_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

// The best set that this processor runs; the environment variable NNGK_KERNELS (plain, avx2, avx512) overrules it.
const Kernels& kernels();
const Kernels* kernels_named(const char* name);

}  // namespace nngk::maps
