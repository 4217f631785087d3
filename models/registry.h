// The models that [model] name = "..." can select.
#pragma once

#include <memory>

#include "core/base/registry.h"
#include "core/nn/model_kind.h"

namespace trireme::models {

Registry<std::shared_ptr<nn::ModelKind>> all_models();

}  // namespace trireme::models
