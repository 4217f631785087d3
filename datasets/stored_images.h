// Images of one size that are in memory as a whole, and MNIST's files that hold them; cifar.h has CIFAR's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "datasets/pixel_source.h"

namespace trireme::datasets {

/// The images of a split, in the order of the files.
struct StoredImages {
  at::Tensor pixels;                 ///< uint8 [N, H, W, C], contiguous
  std::vector<std::int64_t> labels;  ///< [N]
  std::string labels_file{};         ///< for messages
};

/// What the files of a data set hold.
struct StoredSplits {
  StoredImages train, test;
  std::vector<std::string> classes;  ///< names
};

/// MNIST's files: `folder`/{prefix}-images-idx3-ubyte and {prefix}-labels-idx1-ubyte, each as it is or with ".gz".
/// LeCun, Cortes and Burges, "The MNIST database of handwritten digits".
/// @throws DataError that names the file: it is missing, damaged or truncated, or the counts differ
StoredImages read_mnist(const std::string& folder, const std::string& prefix);

/// Labels become classes: numbers[c] is class c. @throws DataError for another label
void number_classes(StoredImages& images, const std::vector<std::int64_t>& numbers);

/// The images [begin, end). @pre 0 <= begin <= end <= N
StoredImages part_of(const StoredImages& images, std::int64_t begin, std::int64_t end);

/// A source that keeps only images `first`, `first + step`, ..., which alone can be loaded; it has all labels.
std::shared_ptr<PixelSource> stored_source(const StoredImages& images, std::int64_t first = 0, std::int64_t step = 1);

}  // namespace trireme::datasets
