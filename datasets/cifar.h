// CIFAR's files, as published: "binary version", and "python version", which are pickles of dictionaries.
// Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "datasets/stored_images.h"

namespace trireme::datasets {

/// Which of CIFAR-10 and CIFAR-100.
struct CifarForm {
  std::int64_t classes;
  std::vector<std::string> train;  ///< names of the files of images, without ".bin"
  std::string test;
  std::int64_t label_bytes;  ///< of an image in a binary file; the last one is the label
  std::string names;         ///< the text file of the classes' names, a line each
  std::string pickled_names, names_key, labels_key;
};
extern const CifarForm kCifar10, kCifar100;

/// The splits and the names of the classes. The pickles are read where there is no binary file; no code of theirs runs.
/// @throws DataError that names the file: it is missing or damaged, or has a label that is no class
StoredSplits read_cifar(const std::string& folder, const CifarForm& form);

}  // namespace trireme::datasets
