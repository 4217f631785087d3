// Finds the layers of a model that the rows of a policy match, and their roles.
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "core/shardformer/role.h"

namespace trireme::nn {
class Model;
}
namespace trireme::shardformer {

/// The layers whose paths match, each once, even if a shared layer has several parents. @throws ConfigError for none
std::vector<nn::Layer*> layers_of(nn::Model& model, std::string_view pattern);

/// Calls use(row, role, layer) for each layer that a row matches. @throws ConfigError for a role that is not known, and
/// a row that matches no layer
template <class Role, class Use>
void for_each(nn::Model& model, const std::vector<nn::PolicyRow>& rows, const Registry<Role>& roles, const Use& use) {
  for (const auto& row : rows) {
    const auto& role = role_of(row, roles);
    for (auto* layer : layers_of(model, row.layer)) use(row, role, *layer);
  }
}

/// The layers that are sharded with another one, and that one.
std::map<const nn::Layer*, const nn::Layer*> parts_of_layers(nn::Model& model);

}  // namespace trireme::shardformer
