// What Python sees of pictures: numpy arrays in and out, the interpreter's lock released while pixels are computed.
#include "middle.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

namespace nb = nanobind;
using namespace nb::literals;
using namespace nngk;

using Pixels = nb::ndarray<const uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using OutPixels = nb::ndarray<uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

NB_MODULE(_pictures, m) {
    m.def("middle", [](Pixels pixels, size_t height, size_t width, size_t top, size_t left, OutPixels out) {
        const Side rows{pixels.shape(0), height, top, out.shape(1)}, columns{pixels.shape(1), width, left, out.shape(2)};
        // The Python side sees to these; a mistake there must not become a wild write.
        const bool inside = top + rows.count <= height && left + columns.count <= width && rows.own && columns.own;
        if (pixels.shape(2) != 3 || out.shape(0) != 3 || !inside) throw std::invalid_argument("a window of an RGB picture was expected");
        middle(pixels.data(), rows, columns, out.data());
    }, "pixels"_a, "height"_a, "width"_a, "top"_a, "left"_a, "out"_a, nb::call_guard<nb::gil_scoped_release>());
}
