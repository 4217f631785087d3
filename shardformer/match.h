// Finds the layers of a model that the rows of a policy match.
#pragma once

#include <functional>
#include <string_view>

#include "core/nn/policy.h"

namespace trireme::nn {
class Layer;
class Model;
}  // namespace trireme::nn

namespace trireme::shardformer {

/// Calls use(row, layer) once for each layer that a row matches, even if a shared layer has several parents.
void for_each(nn::Model& model, const nn::Policy& policy,
              const std::function<void(const nn::PolicyRow& row, nn::Layer& layer)>& use);

}  // namespace trireme::shardformer
