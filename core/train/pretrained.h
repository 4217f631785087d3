// The files next to weights in Hugging Face's layout: config.json says which label has which number (id2label). They
// are read where weights are loaded and written where weights are exported.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/train/prepare.h"

namespace trireme::train {

/// Numbers the data's classes as the weights do if both have the same names, and logs that. Different names are an
/// error in an evaluation, because the model does not know those classes; in training they are logged if the head is
/// kept.
/// @throws ConfigError
void adopt_labels(Prepared& prepared, bool evaluation, const Log& log);

/// Whether this config.json only names classes, as one that was written beside a PyTorch state dict may: the model then
/// has the sizes of [model].
bool has_only_labels(const nlohmann::json& stored);

/// The names of the classes of the weights or adapters, from id2label in their config.json, with "LABEL_0" where that
/// is the name.
/// @throws CheckpointError when they have none
std::vector<std::string> classes_of_weights(const Prepared& prepared);

/// The files next to an exported model's tensors, by name.
std::map<std::string, std::string> model_texts(const Prepared& prepared);

}  // namespace trireme::train
