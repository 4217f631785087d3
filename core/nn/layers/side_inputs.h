// Whether the side inputs that a model's layers can read reach them.
#pragma once

#include <string>

#include "core/nn/data_spec.h"

namespace trireme::nn {

class Model;

/// The problem, or "": the data have an input that attention layers of the model read, such as "attention_mask", but
/// the model gives it to no block, so that it would be ignored.
std::string unread_side_input(Model& model, const DataSpec& data);

}  // namespace trireme::nn
