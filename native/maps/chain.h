// A network as a chain of blocks, each computed a part of a map at a time, so that what is wide in the middle of a block
// stays in a core's cache.
#pragma once

#include "../memory.h"
#include "kernels.h"

#include <memory>
#include <mutex>
#include <vector>

namespace nngk::maps {

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

class Chain {
public:
    void append(Block block);
    size_t size() const { return blocks_.size(); }
    const Block& block(size_t i) const { return blocks_[i]; }
    // outs[i], where not null, takes block i's maps (images, pixels, out_stride); the last one must be there.
    void run(const float* x, size_t images, const std::vector<float*>& outs, int threads, const Kernels& use) const;

private:
    struct Scratch {
        Array<float> maps[2], middle, wide, deep;
    };
    void part(const float* x, size_t first, size_t images, const std::vector<float*>& outs, const Kernels& use, Scratch& s) const;
    const float* through(size_t begin, size_t end, const float* x, size_t image, size_t images, const std::vector<float*>& outs,
                         float* to, const Kernels& use, Scratch& s) const;

    std::vector<Block> blocks_;
    mutable std::vector<std::unique_ptr<Scratch>> idle_;  // kept for later calls: fresh memory costs more than the work
    mutable std::mutex lending_;
};

}  // namespace nngk::maps
