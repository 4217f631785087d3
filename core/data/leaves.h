// Leaves: a built-in data set that needs no download. Pictures of leaves with three kinds of marks:
//   healthy        no disease; blotches of dirt, veins, drops, holes
//   angular_spots  brown patches with straight edges along the veins
//   rust           many small round pustules with a pale halo
// Shape, pose, size, colours, background, light, blur and noise vary, and every class carries the same distractors with
// colours from the same palette, so that mean colour or any other linear reading of pixels says little.
// A picture is a function of (seed, split, number, size) alone, in arithmetic that every machine does alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/data/pixel_source.h"

namespace trireme::data {

inline constexpr std::int64_t kLeafPixels = 48;  ///< a side, unless told
inline constexpr std::int64_t kLeafClasses = 3;

/// Names of the classes, in label order (by name, as a folder of them would have it).
std::vector<std::string> leaf_classes();

/// How many of `images` a split gets: 70, 15 and 15 %.
std::int64_t leaf_count(Split split, std::int64_t images);

/// Picture `number` of a split: uint8 [size, size, 3]. Its class is number % 3.
at::Tensor draw_leaf(Split split, std::int64_t number, std::int64_t size, std::uint64_t seed);

/// @throws DataError when `images` are too few for each split to hold each class.
std::shared_ptr<PixelSource> leaf_source(Split split, std::int64_t images, std::int64_t size, std::uint64_t seed);

}  // namespace trireme::data
