// Which layers of a model the rows of a policy mean.
#pragma once

#include <functional>
#include <string_view>

#include "core/nn/policy.h"

namespace trireme::nn {
class Layer;
class Model;
}  // namespace trireme::nn

namespace trireme::shardformer {

/// Calls use(row, layer) for each layer that a row meets; once, though a shared layer has several parents.
void for_each(nn::Model& model, const nn::Policy& policy,
              const std::function<void(const nn::PolicyRow& row, nn::Layer& layer)>& use);

}  // namespace trireme::shardformer
