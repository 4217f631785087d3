// The files next to weights in Hugging Face's layout: config.json says which label has which number (id2label), and
// with generation_config.json which tokens end a text. They are read where weights are loaded and written where weights
// are exported: an export changes the files of the loaded weights in what the run decides, and keeps the rest.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/train/prepare.h"

namespace trireme::train {

/// Numbers the data's classes as the weights do if both have the same names, and logs that. Different names are an
/// error in an evaluation, because the model does not know those classes; in training they are logged if the head is
/// kept. Where two of the weights' classes have one name, the data must have the same order.
/// @throws ConfigError
void adopt_labels(Prepared& prepared, bool evaluation, const Log& log);

/// Whether this config.json only names classes, as one that was written beside a PyTorch state dict may: the model then
/// has the sizes of [model].
bool has_only_labels(const nlohmann::json& stored);

/// The names of the classes of the weights or adapters, from id2label in their config.json, with "LABEL_0" where that
/// is the name.
/// @throws CheckpointError when they have none
std::vector<std::string> classes_of_weights(const Prepared& prepared);

/// Reads the files beside the weights that exports keep: config.json, if it is of this kind of model; those of the
/// tokenizer, unless the data have their own; generation_config.json for a causal language model.
/// @pre the task is chosen. @throws CheckpointError
void keep_files_of_weights(Prepared& prepared);

/// Says in a config.json which dtype the tensors have, under the name of today and, where it is there, the older one.
void set_dtype(nlohmann::json& config, at::ScalarType dtype);

/// The ids of the tokens that end a text, by the files beside the adapters, else the weights: in each place
/// generation_config.json comes before config.json. Empty: none names one. @throws CheckpointError
std::vector<std::int64_t> end_ids(const Prepared& prepared);

/// The files next to an exported model's tensors, by name. `dtype`: of these; unset: that of the training.
std::map<std::string, std::string> model_texts(const Prepared& prepared, std::optional<at::ScalarType> dtype = {});

}  // namespace trireme::train
