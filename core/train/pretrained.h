// What stands beside weights in Hugging Face's layout: how images are prepared for them (preprocessor_config.json) and
// which label has which number (id2label in config.json). Read where weights are loaded, written where they are
// exported.
#pragma once

#include <map>
#include <string>

#include "core/train/prepare.h"

namespace trireme::train {

/// Takes mean and std from the weights' preprocessor_config.json where the user wrote none. Returns what to tell of it,
/// or "". @throws ConfigError where he wrote others: names both places. CheckpointError for a file that is none.
std::string adopt_preprocessor(Prepared& prepared, const Log& log);

/// Numbers the data's classes as the weights do, where both have the same names, and says so. Other names are an error
/// in an evaluation, which would score what the model does not know; in training they are said where the head is kept.
/// @throws ConfigError
void adopt_labels(Prepared& prepared, bool evaluation, const Log& log);

/// The files that stand beside an exported model's tensors, by name.
std::map<std::string, std::string> model_texts(const Prepared& prepared);

}  // namespace trireme::train
