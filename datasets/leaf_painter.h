// Draws one image of datasets/leaves.h, layer by layer: background, leaf, marks, distractors, light.
//
// Coordinates: x points right and y down; the image is [-1, 1] x [-1, 1]. On the leaf, `along` runs down the midrib and
// `across` is perpendicular to it; lateral veins are the lines where along - slope * |across| is a multiple of
// `spacing`. The arithmetic uses only +, -, *, /, sqrt and floor (no sine or exponential of the C library, no fused
// multiply-add), so the bytes are the same on every machine.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::datasets {

enum class LeafKind { angular_spots, healthy, rust };

/// Returns size * size * 3 bytes: RGB, rows from the top.
std::vector<unsigned char> paint_leaf(std::uint64_t key, std::int64_t size, LeafKind kind);

}  // namespace trireme::datasets
