// A network as a chain of blocks, each computed a part of a map at a time, so that what is wide in the middle of a block
// stays in a core's cache.
#pragma once

#include "blocks.h"

#include <memory>
#include <mutex>
#include <vector>

namespace nngk::maps {

class Chain {
public:
    void append(Block block);
    size_t size() const { return blocks_.size(); }
    const Block& block(size_t i) const { return blocks_[i]; }
    // outs[i], where not null, takes block i's maps (images, pixels, out_stride); the last one must be there.
    void run(const float* x, size_t images, const std::vector<float*>& outs, int threads, const Kernels& use) const;

private:
    struct Scratch {
        Array<float> maps[2], middle;
        Room room;
    };
    std::unique_ptr<Scratch> lent() const;
    void give_back(std::unique_ptr<Scratch> scratch) const;
    void part(const float* x, size_t first, size_t images, const std::vector<float*>& outs, const Kernels& use, Scratch& s) const;
    const float* through(size_t begin, size_t end, const float* x, size_t image, size_t images, const std::vector<float*>& outs,
                         float* to, const Kernels& use, Scratch& s) const;
    void together(const float* x, size_t first, size_t images, const std::vector<float*>& outs, int threads, const Kernels& use) const;
    size_t step() const;  // floats of an image

    std::vector<Block> blocks_;
    mutable std::vector<std::unique_ptr<Scratch>> idle_;  // kept for later calls: fresh memory costs more than the work
    mutable std::mutex lending_;
};

}  // namespace nngk::maps
