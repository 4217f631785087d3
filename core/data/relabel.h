// Changes the order of labels: a model that was trained elsewhere may number the same classes differently.
#pragma once

#include <string>
#include <vector>

#include "core/data/datasets.h"

namespace trireme::data {

/// Whether the two lists contain the same names, each once, in a different order.
bool is_reordering(const std::vector<std::string>& classes, const std::vector<std::string>& others);

/// The data with its classes in the order of `classes`, and with each sample's label changed accordingly.
/// @pre is_reordering(data.info.spec.class_names, classes)
Datasets relabel(Datasets data, const std::vector<std::string>& classes);

}  // namespace trireme::data
