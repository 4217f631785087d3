// The files next to weights in Hugging Face's layout: config.json says which label has which number (id2label). They
// are read where weights are loaded and written where weights are exported.
#pragma once

#include <c10/core/ScalarType.h>

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
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

/// What config.json calls the dtype: "float32".
const char* torch_name(at::ScalarType dtype);

/// The files next to an exported model's tensors, by name. `dtype`: of these; unset: that of the training.
std::map<std::string, std::string> model_texts(const Prepared& prepared, std::optional<at::ScalarType> dtype = {});

}  // namespace trireme::train
