#include "blocks.h"

#include <algorithm>
#include <cstring>

namespace nngk::maps {
namespace {

// The pixels of a map that a product is made of, and what of the result.
struct Part {
    Range pixels, panels;
};

Part whole(const Weights& w, size_t pixels) { return {{0, pixels}, {0, padded(w.out) / PANEL}}; }

void product(const Kernels& use, const Weights& w, const float* a, size_t stride, const Part& part, const float* beside, float* out) {
    const size_t step = padded(w.out), first = part.pixels.begin;
    use.product({a + first * stride, stride, w.in, w.values.data(), w.bias.data(), step / PANEL, part.panels.begin, part.panels.end,
                 beside ? beside + first * step : nullptr, out + first * step, w.bounds},
                part.pixels.end - first);
}

// Some rows and channels of a convolution of each channel; row(y) is the map's row y, out the first of those rows.
template <class Row>
void each_channel(const Kernels& use, const Weights& w, const Window& window, Range rows, Range channels, Row&& row, float* out) {
    const float* above[5];
    const size_t step = padded(w.out);
    for (size_t y = rows.begin; y < rows.end; ++y, out += window.to.width * step) {
        for (size_t k = 0; k < window.kernel; ++k) {
            const size_t at = y * window.stride + k;
            above[k] = at >= window.top && at - window.top < window.from.height ? row(at - window.top) : nullptr;
        }
        use.depthwise({above, window.from.width, step, channels.begin, channels.end, window.kernel, window.stride, window.left,
                       w.values.data(), w.bias.data(), out, window.to.width, w.bounds});
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

// Some rows of a whole convolution.
void gathered(const Kernels& use, const Block& b, const float* in, float* out, Range rows, Room& room) {
    const Window& w = b.window;
    const size_t channels = b.last->in / (w.kernel * w.kernel);
    for (size_t y = rows.begin; y < rows.end; ++y) {
        gather(w, in, channels, y, room.deep.data());
        product(use, *b.last, room.deep.data(), b.last->in, whole(*b.last, w.to.width), nullptr, out + y * w.to.width * b.out_stride());
    }
}

// How many rows of a wide map fit the cache, and the rows of the result that they give.
struct Strip {
    size_t fit, rows;
    explicit Strip(const Block& b) {
        const Window& w = b.window;
        fit = std::max<size_t>(w.kernel + w.stride, CACHE / (w.from.width * padded(b.each->out) * sizeof(float)));
        rows = (fit - w.kernel) / w.stride + 1;
    }
};

// Some rows of a map that does not fit the cache, in strips.
void in_strips(const Kernels& use, const Block& b, const float* in, float* out, Range rows, Room& room) {
    const Window& w = b.window;
    const size_t channels = padded(b.each->out), row = w.from.width * channels, strip = Strip(b).rows;
    float* wide = room.wide.data();
    size_t first = 0, filled = 0;  // rows [first, filled) are in `wide`
    for (size_t y = rows.begin; y < rows.end; y += strip) {
        const size_t end = std::min(rows.end, y + strip), reach = (end - 1) * w.stride + w.kernel;
        const size_t from = y * w.stride > w.top ? y * w.stride - w.top : 0;
        const size_t to = std::min(w.from.height, reach > w.top ? reach - w.top : 0);
        if (b.widen) {
            const size_t kept = filled > from ? filled - from : 0;
            if (kept) std::memmove(wide, wide + (from - first) * row, kept * row * sizeof(float));
            first = from, filled = from + kept;
            if (to > filled) {
                product(use, *b.widen, in + filled * w.from.width * b.in_stride(), b.in_stride(),
                        whole(*b.widen, (to - filled) * w.from.width), nullptr, wide + kept * row);
                filled = to;
            }
        }
        const float* map = b.widen ? wide : in;
        each_channel(use, *b.each, w, {y, end}, {0, channels}, [&](size_t r) { return map + (r - (b.widen ? first : 0)) * row; }, room.deep.data());
        const size_t at = y * w.to.width * b.out_stride();
        product(use, *b.last, room.deep.data(), channels, whole(*b.last, (end - y) * w.to.width), b.adds ? in + at : nullptr, out + at);
    }
}

// What of a product a member of a team computes: panels where there are enough of them, for then it reads no others' weights.
Part share(const Weights& w, size_t pixels, const Member& member) {
    Part part = whole(w, pixels);
    (part.panels.end >= 4 * member.count ? part.panels : part.pixels) = member.share(part.panels.end >= 4 * member.count ? part.panels.end : pixels);
    return part;
}

// Whether members of a team share out a block's channels, and not its rows, which small maps would have too few of.
bool by_channels(const Block& b, size_t members) { return b.each && b.wide() * sizeof(float) <= members * CACHE; }

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

void Room::fit(size_t wide_floats, size_t deep_floats) {
    if (wide.size() < wide_floats) wide.resize(wide_floats);
    if (deep.size() < deep_floats) deep.resize(deep_floats);
}

void Room::fit_strips(const Block& b) {
    if (b.gathers) return fit(0, b.window.to.width * b.last->in);
    if (!b.each) return;
    const Strip strip(b);
    const size_t channels = padded(b.each->out);
    fit(b.widen ? strip.fit * b.window.from.width * channels : 0, strip.rows * b.window.to.width * channels);
}

void Room::fit_whole(const Block& b, size_t images) {
    const size_t channels = b.each ? padded(b.each->out) : 0;
    fit(b.widen ? images * b.window.from.pixels() * channels : 0, images * b.window.to.pixels() * channels);
}

void compute(const Kernels& use, const Block& b, const float* in, float* out, size_t images, Room& room) {
    const Window& w = b.window;
    const size_t pixels = w.from.pixels(), left = w.to.pixels();
    if (b.gathers) {
        room.fit_strips(b);
        const size_t step = pixels * (b.last->in / (w.kernel * w.kernel));
        for (size_t i = 0; i < images; ++i) gathered(use, b, in + i * step, out + i * left * b.out_stride(), {0, w.to.height}, room);
    } else if (!b.each) {
        product(use, *b.last, in, b.in_stride(), whole(*b.last, images * pixels), b.adds ? in : nullptr, out);
    } else if (images == 1) {
        room.fit_strips(b);
        in_strips(use, b, in, out, {0, w.to.height}, room);
    } else {
        const size_t channels = padded(b.each->out);
        room.fit_whole(b, images);
        if (b.widen) product(use, *b.widen, in, b.in_stride(), whole(*b.widen, images * pixels), nullptr, room.wide.data());
        const float* map = b.widen ? room.wide.data() : in;
        for (size_t i = 0; i < images; ++i)
            each_channel(use, *b.each, w, {0, w.to.height}, {0, channels},
                         [&](size_t r) { return map + (i * pixels + r * w.from.width) * channels; },
                         room.deep.data() + i * left * channels);
        product(use, *b.last, room.deep.data(), channels, whole(*b.last, images * left), b.adds ? in : nullptr, out);
    }
}

void compute_together(const Kernels& use, const Block& b, const float* in, float* out, const Member& member, Room& shared, Room& own) {
    const Window& w = b.window;
    if (b.gathers) {
        gathered(use, b, in, out, member.share(w.to.height), own);
    } else if (!b.each) {
        product(use, *b.last, in, b.in_stride(), share(*b.last, w.from.pixels(), member), b.adds ? in : nullptr, out);
    } else if (!by_channels(b, member.count)) {
        in_strips(use, b, in, out, member.share(w.to.height), own);
    } else {
        const size_t channels = padded(b.each->out);
        const Range panels = member.share(channels / PANEL);
        if (b.widen) product(use, *b.widen, in, b.in_stride(), {{0, w.from.pixels()}, panels}, nullptr, shared.wide.data());
        const float* map = b.widen ? shared.wide.data() : in;
        each_channel(use, *b.each, w, {0, w.to.height}, {panels.begin * PANEL, panels.end * PANEL},
                     [&](size_t r) { return map + r * w.from.width * channels; }, shared.deep.data());
        member.wait();
        product(use, *b.last, shared.deep.data(), channels, share(*b.last, w.to.pixels(), member), b.adds ? in : nullptr, out);
    }
    member.wait();
}

}  // namespace nngk::maps
