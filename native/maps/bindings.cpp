// What Python sees of chains: arrays of torch in and out, the interpreter's lock released while maps are computed.
#include "chain.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <stdexcept>

namespace nb = nanobind;
using namespace nb::literals;
using namespace nngk::maps;

namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Maps = nb::ndarray<const float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using OutMaps = nb::ndarray<float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Layer = std::pair<Matrix, Vector>;  // weights (out, in) and bias

// The Python side makes the layers fit; a mistake there must not become a wild write.
void require(bool fits, const char* what) {
    if (!fits) throw std::invalid_argument(std::string("a chain of convolutions: ") + what);
}

Bounds bounds(bool relu6) {
    const float all = std::numeric_limits<float>::infinity();
    return relu6 ? Bounds{0.0f, 6.0f} : Bounds{-all, all};
}

std::unique_ptr<Weights> product(const Layer& layer, bool relu6) {
    const auto& [weight, bias] = layer;
    require(bias.shape(0) == weight.shape(0), "as many biases as channels");
    return std::make_unique<Weights>(packed_product(weight.data(), bias.data(), weight.shape(1), weight.shape(0), bounds(relu6)));
}

Window window_of(const std::vector<size_t>& w) {
    require(w.size() == 8, "eight numbers of a window");
    const Window window{w[0], w[1], w[2], w[3], {w[4], w[5]}, {w[6], w[7]}};
    require(window.kernel > 0 && window.stride > 0 && window.left < window.kernel && window.top < window.kernel, "a window");
    // Each window has at least one row and one column on the map.
    const auto reaches = [&](size_t from, size_t to, size_t margin) { return from && to && (to - 1) * window.stride < from + margin; };
    require(reaches(window.from.height, window.to.height, window.top) && reaches(window.from.width, window.to.width, window.left),
            "windows that touch the map");
    return window;
}

void append(Chain& chain, Block block) {
    if (chain.size()) {
        const Block& before = chain.block(chain.size() - 1);
        require(!block.gathers && before.out_stride() == block.in_stride(), "blocks that follow each other");
        require(before.window.to.height == block.window.from.height && before.window.to.width == block.window.from.width, "maps of one size");
    }
    const Window& w = block.window;
    require(!block.adds || (w.from.pixels() == w.to.pixels() && block.in_stride() == block.out_stride()), "maps that can be added");
    chain.append(std::move(block));
}

void run(const Chain& chain, const Maps& x, const std::vector<std::pair<size_t, OutMaps>>& outs, int threads, const char* name) {
    require(chain.size() > 0 && kernels_named(name), "blocks, and kernels that run");
    const Block& first = chain.block(0);
    const Window& w = first.window;
    const size_t channels = first.gathers ? first.last->in / (w.kernel * w.kernel) : first.in_stride();
    require(x.shape(1) == w.from.height && x.shape(2) == w.from.width && x.shape(3) == channels, "maps of its size");
    std::vector<float*> at(chain.size(), nullptr);
    for (const auto& [i, out] : outs) {
        require(i < chain.size() && out.shape(0) == x.shape(0), "results of its blocks");
        const Block& block = chain.block(i);
        const Size size = block.window.to;
        require(out.shape(1) == size.height && out.shape(2) == size.width && out.shape(3) == block.out_stride(), "results of their size");
        at[i] = out.data();
    }
    require(at.back(), "room for the last map");
    nb::gil_scoped_release free;
    chain.run(x.data(), x.shape(0), at, threads, *kernels_named(name));
}

}  // namespace

NB_MODULE(_maps, m) {
    m.attr("kernels") = kernels().name;
    m.def("has_kernels", [](const char* name) { return kernels_named(name) != nullptr; });
    nb::class_<Chain>(m, "Chain")
        .def(nb::init<>())
        .def("convolution", [](Chain& chain, const Layer& layer, bool relu6, const std::vector<size_t>& window) {
            Block block;
            block.gathers = true, block.last = product(layer, relu6), block.window = window_of(window);
            require(block.last->in % (block.window.kernel * block.window.kernel) == 0, "whole channels");
            append(chain, std::move(block));
        }, "A convolution whose weights are (out, kernel, kernel, in).")
        .def("product", [](Chain& chain, const Layer& layer, bool relu6, bool adds, size_t height, size_t width) {
            Block block;
            block.last = product(layer, relu6), block.adds = adds, block.window = Window{1, 1, 0, 0, {height, width}, {height, width}};
            append(chain, std::move(block));
        })
        .def("separable", [](Chain& chain, const std::vector<Layer>& widen, bool widen_relu6, const Layer& each, bool each_relu6,
                             const Layer& last, bool last_relu6, bool adds, const std::vector<size_t>& window) {
            Block block;
            if (!widen.empty()) block.widen = product(widen[0], widen_relu6);
            block.window = window_of(window);
            const size_t kernel = block.window.kernel, channels = each.first.shape(0);
            require((kernel == 3 || kernel == 5) && block.window.stride <= 2, "a kernel of 3 or 5, a stride of 1 or 2");
            require(each.first.shape(1) == kernel * kernel && each.second.shape(0) == channels, "a window for each channel");
            block.each = std::make_unique<Weights>(packed_depthwise(each.first.data(), each.second.data(), channels, kernel, bounds(each_relu6)));
            block.last = product(last, last_relu6), block.adds = adds;
            require(block.last->in == channels && (!block.widen || block.widen->out == channels), "as many channels throughout");
            append(chain, std::move(block));
        })
        .def("run", &run, "x"_a, "outs"_a.noconvert(), "threads"_a, "kernels"_a);
}
