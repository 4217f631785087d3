// Finds the layers of a model that the rows of a policy match.
#pragma once

#include <set>
#include <string_view>
#include <vector>

#include "core/nn/policy.h"

namespace trireme::nn {
class Layer;
class Model;
}  // namespace trireme::nn

namespace trireme::shardformer {

/// The layers whose paths match, each once, even if a shared layer has several parents.
std::vector<nn::Layer*> layers_of(nn::Model& model, std::string_view pattern);

/// Calls use(row, layer) for each layer that a row matches.
template <class Role, class Use>
void for_each(nn::Model& model, const std::vector<nn::PolicyRow<Role>>& rows, const Use& use) {
  for (const auto& row : rows)
    for (auto* layer : layers_of(model, row.layer)) use(row, *layer);
}

/// The layers that belong to an attention layer or a gated one and are sharded with it.
std::set<const nn::Layer*> parts_of_layers(nn::Model& model);

}  // namespace trireme::shardformer
