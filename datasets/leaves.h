// Leaves: a built-in data set that needs no download: images of leaves with three kinds of marks:
//   healthy        no disease; blotches of dirt, veins, drops, holes
//   angular_spots  brown patches with straight edges along the veins
//   rust           many small round pustules with a pale halo
// Shape, pose, size, colours, background, light, blur and noise vary, and every class has the same distractors with
// colours from the same palette. The mean colour, or any other linear function of the pixels, therefore says little
// about the class. An image depends only on (seed, split, number, size), with arithmetic that is the same on every
// machine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/data/datasets.h"
#include "datasets/pixel_source.h"

namespace trireme::datasets {

inline constexpr std::int64_t kLeafPixels = 48;  ///< default pixels per side
inline constexpr std::int64_t kLeastLeafPixels = 16, kMostLeafPixels = 4096;
inline constexpr std::int64_t kLeafClasses = 3;

/// Names of the classes in label order (sorted by name, as in an image folder).
std::vector<std::string> leaf_classes();

/// The number of images that a split gets: 70, 15 and 15 % of `images`.
std::int64_t leaf_count(data::Split split, std::int64_t images);

/// Image `number` of a split: uint8 [size, size, 3]. Its class is number % 3.
at::Tensor draw_leaf(data::Split split, std::int64_t number, std::int64_t size, std::uint64_t seed);

/// @throws DataError when there are too few `images` for each split to contain each class.
std::shared_ptr<PixelSource> leaf_source(data::Split split, std::int64_t images, std::int64_t size, std::uint64_t seed);

/// Generates the leaf images in dir/{train,validation,test}/{healthy,angular_spots,rust}/*.png: three kinds of marks on
/// leaves of varied shape, pose, hue and background. The same arguments give the same bytes. 70/15/15 split, balanced
/// classes.
void write_leaves(const std::string& dir, std::int64_t images, std::int64_t size, std::uint64_t seed);

}  // namespace trireme::datasets
