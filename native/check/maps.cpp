// A program for the sanitizers: blocks of every kind on maps of awkward sizes, in every instruction set, by several
// threads and several callers at once, against plain loops.
#include "../maps/chain.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

using namespace nngk::maps;

namespace {

std::mt19937 generator(0);

std::vector<float> normal(size_t n) {
    std::normal_distribution<float> draw;
    std::vector<float> x(n);
    for (float& value : x) value = draw(generator);
    return x;
}

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "wrong: %s\n", what);
    std::exit(1);
}

const Bounds BOUNDS{0.0f, 6.0f};
float bounded(float x) { return std::min(std::max(x, BOUNDS.low), BOUNDS.high); }

struct Layer {
    size_t in, out;
    std::vector<float> weight, bias;
    Layer(size_t in, size_t out) : in(in), out(out), weight(normal(in * out)), bias(normal(out)) {
        for (float& w : weight) w /= std::sqrt(float(in));
    }
    std::unique_ptr<Weights> packed() const { return std::make_unique<Weights>(packed_product(weight.data(), bias.data(), in, out, BOUNDS)); }
    // Each pixel of a map, whose channels lie `stride` apart.
    std::vector<float> of(const std::vector<float>& x, size_t stride) const {
        const size_t pixels = x.size() / stride, wide = padded(out);
        std::vector<float> y(pixels * wide, 0.0f);
        for (size_t p = 0; p < pixels; ++p)
            for (size_t o = 0; o < out; ++o) {
                float sum = bias[o];
                for (size_t i = 0; i < in; ++i) sum += weight[o * in + i] * x[p * stride + i];
                y[p * wide + o] = bounded(sum);
            }
        return y;
    }
};

// One image's windows: of each channel by itself, or laid out one after the other.
std::vector<float> windows(const Window& w, const std::vector<float>& x, size_t channels, const Layer* each) {
    const size_t taps = w.kernel * w.kernel;
    std::vector<float> y(w.to.pixels() * channels * (each ? 1 : taps), 0.0f);
    for (size_t oy = 0; oy < w.to.height; ++oy)
        for (size_t ox = 0; ox < w.to.width; ++ox)
            for (size_t c = 0; c < channels; ++c) {
                float sum = each && c < each->out ? each->bias[c] : 0.0f;
                for (size_t t = 0; t < taps; ++t) {
                    const size_t iy = oy * w.stride + t / w.kernel - w.top, ix = ox * w.stride + t % w.kernel - w.left;
                    const float value = iy < w.from.height && ix < w.from.width ? x[(iy * w.from.width + ix) * channels + c] : 0.0f;
                    if (!each)
                        y[((oy * w.to.width + ox) * taps + t) * channels + c] = value;
                    else if (c < each->out)
                        sum += each->weight[c * taps + t] * value;
                }
                if (each && c < each->out) y[(oy * w.to.width + ox) * channels + c] = bounded(sum);
            }
    return y;
}

// A whole convolution, a block that widens and, with a stride of one, adds, and a product: what plain loops say of one image.
struct Network {
    size_t inside;
    Window first, second;
    Layer gathered, widened, each, last, head;
    Chain chain;

    Network(Size from, size_t kernel, size_t stride, size_t channels)
        : inside(3 * channels), first{3, 2, 1, 1, from, halved(from)},
          second{kernel, stride, kernel / 2, kernel / 2, first.to, stride == 1 ? first.to : halved(first.to)},
          gathered(27, channels), widened(channels, inside), each(kernel * kernel, inside), last(inside, channels), head(channels, 5) {
        Block one, two, three;
        one.gathers = true, one.last = gathered.packed(), one.window = first;
        two.widen = widened.packed(), two.last = last.packed(), two.window = second, two.adds = stride == 1;
        two.each = std::make_unique<Weights>(packed_depthwise(each.weight.data(), each.bias.data(), inside, kernel, BOUNDS));
        three.last = head.packed(), three.window = Window{1, 1, 0, 0, second.to, second.to};
        chain.append(std::move(one)), chain.append(std::move(two)), chain.append(std::move(three));
    }
    static Size halved(Size s) { return {(s.height + 1) / 2, (s.width + 1) / 2}; }

    std::vector<float> of(const std::vector<float>& image) const {
        const std::vector<float> stem = gathered.of(windows(first, image, 3, nullptr), 27);
        const std::vector<float> wide = widened.of(stem, padded(gathered.out));
        std::vector<float> narrow = last.of(windows(second, wide, padded(inside), &each), padded(inside));
        for (size_t i = 0; second.stride == 1 && i < narrow.size(); ++i) narrow[i] += stem[i];
        return head.of(narrow, padded(last.out));
    }
};

void check(Size from, size_t kernel, size_t stride, size_t channels, size_t images) {
    const Network network(from, kernel, stride, channels);
    const size_t size = from.pixels() * 3;
    const std::vector<float> x = normal(images * size);
    std::vector<float> expected;
    for (size_t i = 0; i < images; ++i) {
        const std::vector<float> one = network.of({x.begin() + long(i * size), x.begin() + long((i + 1) * size)});
        expected.insert(expected.end(), one.begin(), one.end());
    }
    for (const char* name : {"plain", "avx2", "avx512"}) {
        const Kernels* use = kernels_named(name);
        if (!use) continue;
        auto ask = [&](int threads) {
            std::vector<float> found(expected.size());
            network.chain.run(x.data(), images, {nullptr, nullptr, found.data()}, threads, *use);
            for (size_t i = 0; i < found.size(); ++i) expect(std::fabs(found[i] - expected[i]) < 1e-4f, name);
        };
        std::thread other([&] { ask(2); });
        ask(3);
        other.join();
    }
}

}  // namespace

int main(int count, char**) {
    const bool less = count > 1;
    for (const size_t kernel : {3, 5})
        for (const size_t stride : {1, 2})
            for (const size_t channels : {5, 16, 40})
                for (const Size from : {Size{1, 1}, Size{2, 3}, Size{9, 14}, Size{33, 31}})
                    for (const size_t images : {1, 2, 11})
                        if (!less || images * from.pixels() < 1500) check(from, kernel, stride, channels, images);
    check({150, 130}, 5, 1, 24, 2);  // too wide for the cache: in strips
    std::puts("maps: no wrong answer");
}
