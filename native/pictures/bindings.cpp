// What Python sees of pictures: numpy arrays in and out, the interpreter's lock released while pixels are computed.
#include "middle.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

namespace nb = nanobind;
using namespace nb::literals;
using namespace nngk;

using Pixels = nb::ndarray<const uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Pictures = nb::ndarray<const uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Levels = nb::ndarray<const float, nb::shape<3, 256>, nb::c_contig, nb::device::cpu>;
using OutPictures = nb::ndarray<float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using OutPixels = nb::ndarray<uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

namespace {

// The C data interface of Arrow, as its specification lays it out.
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void** buffers;
    ArrowArray** children;
    ArrowArray* dictionary;
    void (*release)(ArrowArray*);
    void* private_data;
};

void window(const uint8_t* pixels, size_t bytes, const Side& rows, const Side& columns, const OutPixels& out) {
    // The Python side sees to these; a mistake there must not become a wild write.
    const bool inside = rows.first + rows.count <= rows.resized && columns.first + columns.count <= columns.resized && rows.own && columns.own;
    if (out.shape(0) != 3 || !inside) throw std::invalid_argument("a window of an RGB picture was expected");
    middle(pixels, bytes, rows, columns, out.data());
}

}  // namespace

// An array to be written is taken as it is: of another kind of numbers nanobind would fill a copy.
NB_MODULE(_pictures, m) {
    m.def("middle", [](Pixels pixels, size_t height, size_t width, size_t top, size_t left, OutPixels out) {
        if (pixels.shape(2) != 3) throw std::invalid_argument("a window of an RGB picture was expected");
        window(pixels.data(), 3, {pixels.shape(0), height, top, out.shape(1)}, {pixels.shape(1), width, left, out.shape(2)}, out);
    }, "pixels"_a, "height"_a, "width"_a, "top"_a, "left"_a, "out"_a.noconvert(), nb::call_guard<nb::gil_scoped_release>());

    // A picture of Pillow where it lies: a list of four bytes for each pixel, as `__arrow_c_array__` gives it.
    m.def("middle_of_arrow", [](nb::capsule picture, size_t tall, size_t wide, size_t height, size_t width, size_t top, size_t left, OutPixels out) {
        const auto* list = static_cast<const ArrowArray*>(PyCapsule_GetPointer(picture.ptr(), "arrow_array"));
        if (!list) throw nb::python_error();
        const bool whole = list->n_children == 1 && list->offset == 0 && size_t(list->length) == tall * wide;
        const ArrowArray* bytes = whole ? list->children[0] : nullptr;
        if (!bytes || bytes->n_buffers != 2 || bytes->offset != 0 || size_t(bytes->length) != 4 * tall * wide)
            throw std::invalid_argument("pixels of four bytes were expected");
        const auto* pixels = static_cast<const uint8_t*>(bytes->buffers[1]);
        nb::gil_scoped_release others;
        window(pixels, 4, {tall, height, top, out.shape(1)}, {wide, width, left, out.shape(2)}, out);
    }, "picture"_a, "tall"_a, "wide"_a, "height"_a, "width"_a, "top"_a, "left"_a, "out"_a.noconvert());

    // Planes of bytes (pictures, 3, height, width) to pixels of numbers (pictures, height, width, 3).
    m.def("levelled", [](Pictures pictures, Levels levels, OutPictures out) {
        const size_t count = pictures.shape(0), height = pictures.shape(2), width = pictures.shape(3);
        if (pictures.shape(1) != 3 || out.shape(0) != count || out.shape(1) != height || out.shape(2) != width || out.shape(3) != 3)
            throw std::invalid_argument("RGB pictures and room for them were expected");
        for (size_t i = 0; i < count; ++i) levelled(pictures.data() + 3 * height * width * i, height * width, levels.data(), out.data() + 3 * height * width * i);
    }, "pictures"_a, "levels"_a, "out"_a.noconvert(), nb::call_guard<nb::gil_scoped_release>());
}
