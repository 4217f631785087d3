// Changes the numbers of labels: a model that was trained elsewhere may number the same classes differently, and have
// others that the data lacks.
#pragma once

#include <string>
#include <vector>

#include "core/data/datasets.h"

namespace trireme::data {

/// Whether each of the names, which all differ, is once among the others.
bool are_among(const std::vector<std::string>& classes, const std::vector<std::string>& others);

/// The data with these classes, and with each sample's label, or labels [C], changed accordingly.
/// @pre are_among(data.info.spec.class_names, classes)
Datasets relabel(Datasets data, const std::vector<std::string>& classes);

/// The data with these names of its classes, which may be followed by more classes. Labels [C] get places for these.
Datasets rename_classes(Datasets data, const std::vector<std::string>& classes);

}  // namespace trireme::data
