// The middle of a resized picture, computed without the rest of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nngk {

struct Side {
    size_t own, resized;  // pixels of the picture, and what they would become
    size_t first, count;  // those of the resized ones that are wanted
};

// Resizes RGB pixels (rows.own, columns.own) of 3 bytes each, or of 4 with one that says nothing, as Pillow's bilinear filter
// does, to the bit, and writes only the wanted window, channel by channel: out is (3, rows.count, columns.count).
void middle(const uint8_t* pixels, size_t each, const Side& rows, const Side& columns, uint8_t* out);

// Planes of three colours, so many pixels each, to pixels of three numbers: levels has those of the 256 bytes of each colour.
void levelled(const uint8_t* planes, size_t pixels, const float* levels, float* out);

}  // namespace nngk
