// A block of a network, and how its maps are computed: by one thread, or by several that share an image.
#pragma once

#include "../memory.h"
#include "kernels.h"
#include "team.h"

#include <memory>

namespace nngk::maps {

constexpr size_t CACHE = size_t(512) << 10;  // bytes of the second-level cache for the wide map

struct Size {
    size_t height, width;
    size_t pixels() const { return height * width; }
};

// A convolution's window: how it moves over a map of one size and what size it leaves.
struct Window {
    size_t kernel, stride, left, top;
    Size from, to;
};

struct Weights {
    size_t in, out;  // channels, as they are
    Array<float> values, bias;
    Bounds bounds;
};

Weights packed_product(const float* weight, const float* bias, size_t in, size_t out, Bounds bounds);
Weights packed_depthwise(const float* weight, const float* bias, size_t channels, size_t kernel, Bounds bounds);

// Widens, convolves each channel, narrows, and adds its input: what a block lacks is empty.
struct Block {
    bool gathers = false;  // a whole convolution, of windows that are laid out as pixels for `last`
    std::unique_ptr<Weights> widen, each, last;
    Window window{};
    bool adds = false;

    size_t in_stride() const;
    size_t out_stride() const { return padded(last->out); }
    size_t wide() const;  // floats of the widest map of an image
};

// What lies in the middle of a block.
struct Room {
    Array<float> wide, deep;

    // Arrays do not shrink.
    void fit(size_t wide_floats, size_t deep_floats);
    void fit_strips(const Block& block);
    void fit_whole(const Block& block, size_t images);
};

void compute(const Kernels& use, const Block& block, const float* in, float* out, size_t images, Room& room);

// One image, by all members of a team, each of which has a room of its own beside the one that they share. Both are made
// to fit before the team begins: who fails for want of memory would be waited for.
void compute_together(const Kernels& use, const Block& block, const float* in, float* out, const Member& member, Room& shared, Room& own);

}  // namespace nngk::maps
