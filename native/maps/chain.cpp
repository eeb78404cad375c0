#include "chain.h"

#include "../threads.h"

#include <cstring>

namespace nngk::maps {
namespace {

constexpr size_t CACHE = size_t(512) << 10; // bytes of the second-level cache for the wide map
constexpr size_t TOGETHER = 8;              // images that a thread takes at a time

void product(const Kernels& use, const Weights& w, const float* a, size_t stride, size_t pixels, const float* beside, float* out) {
    use.product({a, stride, w.in, w.values.data(), w.bias.data(), padded(w.out) / PANEL, beside, out, w.bounds}, pixels);
}

// The rows [begin, end) of a convolution of each channel; row(y) is the map's row y.
template <class Row>
void each_channel(const Kernels& use, const Weights& w, const Window& window, size_t begin, size_t end, Row&& row, float* out) {
    const float* rows[5];
    const size_t channels = padded(w.out);
    for (size_t y = begin; y < end; ++y, out += window.to.width * channels) {
        for (size_t k = 0; k < window.kernel; ++k) {
            const size_t at = y * window.stride + k;
            rows[k] = at >= window.top && at - window.top < window.from.height ? row(at - window.top) : nullptr;
        }
        use.depthwise({rows, window.from.width, channels, window.kernel, window.stride, window.left, w.values.data(),
                       w.bias.data(), out, window.to.width, w.bounds});
    }
}

// A row of windows of a map, each laid out as a pixel (kernel, kernel, channels).
void gather(const Window& w, const float* image, size_t channels, size_t y, float* out) {
    const size_t across = w.kernel * channels;
    for (size_t x = 0; x < w.to.width; ++x)
        for (size_t ky = 0; ky < w.kernel; ++ky, out += across) {
            const size_t down = y * w.stride + ky - w.top, along = x * w.stride - w.left;  // wrap beyond an edge
            const bool on_map = down < w.from.height;
            const float* row = image + (on_map ? down : 0) * w.from.width * channels;
            if (on_map && along < w.from.width && along + w.kernel <= w.from.width) {
                for (size_t i = 0; i < across; ++i) out[i] = row[along * channels + i];
                continue;
            }
            for (size_t kx = 0; kx < w.kernel; ++kx)
                for (size_t c = 0; c < channels; ++c)
                    out[kx * channels + c] = on_map && along + kx < w.from.width ? row[(along + kx) * channels + c] : 0.0f;
        }
}

// A map that does not fit the cache goes through a block in strips of rows.
void in_strips(const Kernels& use, const Block& b, const float* in, float* out, Array<float>& wide, Array<float>& deep) {
    const Window& w = b.window;
    const size_t channels = padded(b.each->out), row = w.from.width * channels;
    const size_t fit = std::max<size_t>(w.kernel + w.stride, CACHE / (row * sizeof(float)));
    const size_t strip = (fit - w.kernel) / w.stride + 1;  // rows of the result
    wide.resize(b.widen ? fit * row : 0), deep.resize(strip * w.to.width * channels);
    size_t first = 0, filled = 0;  // rows [first, filled) are in `wide`
    for (size_t y = 0; y < w.to.height; y += strip) {
        const size_t end = std::min(w.to.height, y + strip), reach = (end - 1) * w.stride + w.kernel;
        const size_t from = y * w.stride > w.top ? y * w.stride - w.top : 0;
        const size_t to = std::min(w.from.height, reach > w.top ? reach - w.top : 0);
        if (b.widen) {
            const size_t kept = filled > from ? filled - from : 0;
            if (kept) std::memmove(wide.data(), wide.data() + (from - first) * row, kept * row * sizeof(float));
            first = from, filled = from + kept;
            if (to > filled) {
                product(use, *b.widen, in + filled * w.from.width * b.in_stride(), b.in_stride(), (to - filled) * w.from.width,
                        nullptr, wide.data() + kept * row);
                filled = to;
            }
        }
        const float* map = b.widen ? wide.data() : in;
        each_channel(use, *b.each, w, y, end, [&](size_t r) { return map + (r - (b.widen ? first : 0)) * row; }, deep.data());
        const size_t at = y * w.to.width * b.out_stride();
        product(use, *b.last, deep.data(), channels, (end - y) * w.to.width, b.adds ? in + at : nullptr, out + at);
    }
}

void compute(const Kernels& use, const Block& b, const float* in, float* out, size_t images, Array<float>& wide, Array<float>& deep) {
    const Window& w = b.window;
    const size_t pixels = w.from.pixels(), left = w.to.pixels();
    if (b.gathers) {
        const size_t channels = b.last->in / (w.kernel * w.kernel);
        deep.resize(w.to.width * b.last->in);
        for (size_t row = 0; row < images * w.to.height; ++row) {
            gather(w, in + row / w.to.height * pixels * channels, channels, row % w.to.height, deep.data());
            product(use, *b.last, deep.data(), b.last->in, w.to.width, nullptr, out + row * w.to.width * b.out_stride());
        }
    } else if (!b.each) {
        product(use, *b.last, in, b.in_stride(), images * pixels, b.adds ? in : nullptr, out);
    } else if (images == 1) {
        in_strips(use, b, in, out, wide, deep);
    } else {
        const size_t channels = padded(b.each->out);
        const float* map = in;
        if (b.widen) {
            wide.resize(images * pixels * channels);
            product(use, *b.widen, in, b.in_stride(), images * pixels, nullptr, wide.data());
            map = wide.data();
        }
        deep.resize(images * left * channels);
        for (size_t i = 0; i < images; ++i)
            each_channel(use, *b.each, w, 0, w.to.height,
                         [&](size_t r) { return map + (i * pixels + r * w.from.width) * channels; },
                         deep.data() + i * left * channels);
        product(use, *b.last, deep.data(), channels, images * left, b.adds ? in : nullptr, out);
    }
}

}  // namespace

Weights packed_product(const float* weight, const float* bias, size_t in, size_t out, Bounds bounds) {
    Weights w{in, out, Array<float>(padded(out) * in, 0.0f), Array<float>(padded(out), 0.0f), bounds};
    for (size_t o = 0; o < out; ++o) {
        w.bias[o] = bias[o];
        for (size_t i = 0; i < in; ++i) w.values[(o / PANEL * in + i) * PANEL + o % PANEL] = weight[o * in + i];
    }
    return w;
}

Weights packed_depthwise(const float* weight, const float* bias, size_t channels, size_t kernel, Bounds bounds) {
    const size_t taps = kernel * kernel;
    Weights w{channels, channels, Array<float>(padded(channels) * taps, 0.0f), Array<float>(padded(channels), 0.0f), bounds};
    for (size_t c = 0; c < channels; ++c) {
        w.bias[c] = bias[c];
        for (size_t t = 0; t < taps; ++t) w.values[(c / PANEL * taps + t) * PANEL + c % PANEL] = weight[c * taps + t];
    }
    return w;
}

size_t Block::in_stride() const { return padded(widen ? widen->in : each ? each->in : last->in); }

size_t Block::wide() const {
    const size_t channels = each ? padded(each->out) : out_stride();
    return std::max(window.from.pixels(), window.to.pixels()) * channels;
}

void Chain::append(Block block) { blocks_.push_back(std::move(block)); }

void Chain::run(const float* x, size_t images, const std::vector<float*>& outs, int threads, const Kernels& use) const {
    const size_t share = (images + size_t(std::max(threads, 1)) - 1) / size_t(std::max(threads, 1));
    parallel(images, std::min(TOGETHER, share), threads, [&](size_t begin, size_t end, int) {
        std::unique_ptr<Scratch> scratch;
        {
            const std::lock_guard<std::mutex> guard(lending_);
            if (!idle_.empty()) scratch = std::move(idle_.back()), idle_.pop_back();
        }
        if (!scratch) scratch = std::make_unique<Scratch>();
        part(x, begin, end - begin, outs, use, *scratch);
        const std::lock_guard<std::mutex> guard(lending_);
        idle_.push_back(std::move(scratch));
    });
}

// Large maps an image at a time, then several images together where their wide maps share the cache: weights are read once
// for all of them.
void Chain::part(const float* x, size_t first, size_t images, const std::vector<float*>& outs, const Kernels& use, Scratch& s) const {
    size_t turn = blocks_.size();
    while (turn > 0 && 2 * blocks_[turn - 1].wide() * sizeof(float) <= CACHE) --turn;
    const Block& start = blocks_[0];
    const size_t channels = start.gathers ? start.last->in / (start.window.kernel * start.window.kernel) : start.in_stride();
    const size_t step = start.window.from.pixels() * channels;
    x += first * step;
    size_t middle = step;
    if (turn > 0) {
        middle = blocks_[turn - 1].window.to.pixels() * blocks_[turn - 1].out_stride();
        if (turn < blocks_.size()) s.middle.resize(images * middle);
        for (size_t i = 0; i < images; ++i)
            through(0, turn, x + i * step, first + i, 1, outs, turn < blocks_.size() ? s.middle.data() + i * middle : nullptr, use, s);
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
            s.maps[b % 2].resize(images * each), out = s.maps[b % 2].data();
        compute(use, blocks_[b], x, out, images, s.wide, s.deep);
        if (b + 1 == end && to && out != to) std::memcpy(to, out, images * each * sizeof(float));
        x = out;
    }
    return x;
}

}  // namespace nngk::maps
