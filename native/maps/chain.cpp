#include "chain.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace nngk::maps {
namespace {

constexpr size_t TOGETHER = 8;  // images that a thread takes at a time

}  // namespace

void Chain::append(Block block) { blocks_.push_back(std::move(block)); }

size_t Chain::step() const {
    const Block& start = blocks_[0];
    const size_t channels = start.gathers ? start.last->in / (start.window.kernel * start.window.kernel) : start.in_stride();
    return start.window.from.pixels() * channels;
}

std::unique_ptr<Chain::Scratch> Chain::lent() const {
    const std::lock_guard<std::mutex> guard(lending_);
    if (idle_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(idle_.back());
    idle_.pop_back();
    return scratch;
}

void Chain::give_back(std::unique_ptr<Scratch> scratch) const {
    const std::lock_guard<std::mutex> guard(lending_);
    idle_.push_back(std::move(scratch));
}

// Each thread takes images of its own, as long as there is one for each; those that are left are shared by all threads.
void Chain::run(const float* x, size_t images, const std::vector<float*>& outs, int threads, const Kernels& use) const {
    const size_t members = size_t(std::max(threads, 1)), alone = images / members * members;
    if (alone) {
        const size_t rounds = (alone + members * TOGETHER - 1) / (members * TOGETHER);
        const size_t piece = (alone + members * rounds - 1) / (members * rounds);
        std::atomic<size_t> next{0};
        in_team(int(members), [&](const Member&) {
            std::unique_ptr<Scratch> scratch = lent();
            for (size_t first; (first = next.fetch_add(piece)) < alone;)
                part(x, first, std::min(piece, alone - first), outs, use, *scratch);
            give_back(std::move(scratch));
        });
    }
    if (alone < images) together(x, alone, images - alone, outs, int(members), use);
}

void Chain::together(const float* x, size_t first, size_t images, const std::vector<float*>& outs, int threads, const Kernels& use) const {
    std::vector<std::unique_ptr<Scratch>> own;
    for (int t = 0; t < threads; ++t) own.push_back(lent());
    std::unique_ptr<Scratch> shared = lent();
    for (const Block& b : blocks_) {
        shared->room.fit_whole(b, 1);
        for (Array<float>& map : shared->maps) map.resize(std::max(map.size(), b.window.to.pixels() * b.out_stride()));
        for (auto& scratch : own) scratch->room.fit_strips(b);
    }
    in_team(threads, [&](const Member& member) {
        for (size_t i = first; i < first + images; ++i) {
            const float* in = x + i * step();
            for (size_t b = 0; b < blocks_.size(); ++b) {
                float* out = outs[b] ? outs[b] + i * blocks_[b].window.to.pixels() * blocks_[b].out_stride() : shared->maps[b % 2].data();
                compute_together(use, blocks_[b], in, out, member, shared->room, own[member.index]->room);
                in = out;
            }
        }
    });
    own.push_back(std::move(shared));
    for (auto& scratch : own) give_back(std::move(scratch));
}

// Large maps an image at a time, then several images together where their wide maps share the cache: weights are read once
// for all of them.
void Chain::part(const float* x, size_t first, size_t images, const std::vector<float*>& outs, const Kernels& use, Scratch& s) const {
    size_t turn = blocks_.size();
    while (turn > 0 && 2 * blocks_[turn - 1].wide() * sizeof(float) <= CACHE) --turn;
    x += first * step();
    size_t middle = step();
    if (turn > 0) {
        middle = blocks_[turn - 1].window.to.pixels() * blocks_[turn - 1].out_stride();
        if (turn < blocks_.size()) s.middle.resize(std::max(s.middle.size(), images * middle));
        for (size_t i = 0; i < images; ++i)
            through(0, turn, x + i * step(), first + i, 1, outs, turn < blocks_.size() ? s.middle.data() + i * middle : nullptr, use, s);
        x = s.middle.data();
    }
    if (turn == blocks_.size()) return;
    size_t most = 1;
    for (size_t b = turn; b < blocks_.size(); ++b) most = std::max(most, blocks_[b].wide());
    const size_t group = std::max<size_t>(1, CACHE / (most * sizeof(float)));
    for (size_t i = 0; i < images; i += group)
        through(turn, blocks_.size(), x + i * middle, first + i, std::min(group, images - i), outs, nullptr, use, s);
}

// Blocks [begin, end) of some images, whose last map goes `to` where that is not null.
const float* Chain::through(size_t begin, size_t end, const float* x, size_t image, size_t images, const std::vector<float*>& outs,
                            float* to, const Kernels& use, Scratch& s) const {
    for (size_t b = begin; b < end; ++b) {
        const size_t each = blocks_[b].window.to.pixels() * blocks_[b].out_stride();
        float* out;
        if (outs[b])
            out = outs[b] + image * each;
        else if (b + 1 == end && to)
            out = to;
        else
            s.maps[b % 2].resize(std::max(s.maps[b % 2].size(), images * each)), out = s.maps[b % 2].data();
        compute(use, blocks_[b], x, out, images, s.room);
        if (b + 1 == end && to && out != to) std::memcpy(to, out, images * each * sizeof(float));
        x = out;
    }
    return x;
}

}  // namespace nngk::maps
