// Finds the layers of a model that the rows of a policy match, and their roles.
#pragma once

#include <map>
#include <string>
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

/// Throws what a function of a role's has thrown, in a catch block: as a ConfigError that names the role, the layer and
/// `doing`, unless it is an error of another cause, such as a lost rank or no memory.
[[noreturn]] void rethrow_from_role(const nn::PolicyRow& row, const nn::Layer& layer, const std::string& doing);

/// The result of a function of a role's, an extension's perhaps. @throws as rethrow_from_role()
template <class Function>
auto call_role(const nn::PolicyRow& row, const nn::Layer& layer, const std::string& doing, const Function& function) {
  try {
    return function();
  } catch (...) {
    rethrow_from_role(row, layer, doing);
  }
}

/// The layers that are sharded with another one, and that one.
std::map<const nn::Layer*, const nn::Layer*> parts_of_layers(nn::Model& model);

}  // namespace trireme::shardformer
