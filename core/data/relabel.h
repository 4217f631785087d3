// Labels in another order: a model that was trained elsewhere may number the same classes otherwise.
#pragma once

#include <string>
#include <vector>

#include "core/data/dataset.h"

namespace trireme::data {

/// Whether the two lists hold the same names, each once, in another order.
bool is_reordering(const std::vector<std::string>& classes, const std::vector<std::string>& others);

/// The data with its classes in the order of `classes`, and each sample's label the number of its class there.
/// @pre is_reordering(data.info.classes, classes)
Datasets relabel(Datasets data, const std::vector<std::string>& classes);

}  // namespace trireme::data
