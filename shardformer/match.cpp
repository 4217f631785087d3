#include "shardformer/match.h"

#include "core/base/text.h"
#include "core/nn/block.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/gated_linear.h"

namespace trireme::shardformer {

/// Matches name by name: a '*' does not match a dot.
static bool meets(std::string_view pattern, std::string_view path) {
  const auto dot = pattern.find('.'), at = path.find('.');
  const auto name = path.substr(0, at), wanted = pattern.substr(0, dot);
  if (wanted.find('*') == std::string_view::npos ? wanted != name : !text::matches(name, wanted)) return false;
  if (dot == std::string_view::npos || at == std::string_view::npos) return dot == at;
  return meets(pattern.substr(dot + 1), path.substr(at + 1));
}

std::vector<nn::Layer*> layers_of(nn::Model& model, std::string_view pattern) {
  std::vector<nn::Layer*> found;
  std::set<const nn::Layer*> seen;
  model.apply([&](torch::nn::Module& module) {
    auto* layer = dynamic_cast<nn::Layer*>(&module);
    if (layer != nullptr && meets(pattern, layer->path()) && seen.insert(layer).second) found.push_back(layer);
  });
  return found;
}

std::set<const nn::Layer*> parts_of_layers(nn::Model& model) {
  std::set<const nn::Layer*> parts;
  model.apply([&](torch::nn::Module& module) {
    const auto* gated = dynamic_cast<nn::GatedLinear*>(&module);
    if (const auto* attention = dynamic_cast<nn::SelfAttention*>(&module)) {
      for (const auto& part : attention->projections.parts()) parts.insert(part.get());
      parts.insert(attention->dropout.get());
      if (attention->query_norm) parts.insert({attention->query_norm.get(), attention->key_norm.get()});
    } else if (gated != nullptr) {
      for (const auto& part : gated->projections.parts()) parts.insert(part.get());
    }
  });
  return parts;
}

}  // namespace trireme::shardformer
