#include "shardformer/match.h"

#include <set>

#include "core/base/text.h"
#include "core/nn/block.h"

namespace trireme::shardformer {

/// Matches name by name: a '*' does not match a dot.
static bool meets(std::string_view pattern, std::string_view path) {
  const auto dot = pattern.find('.'), at = path.find('.');
  const auto name = path.substr(0, at), wanted = pattern.substr(0, dot);
  if (wanted.find('*') == std::string_view::npos ? wanted != name : !text::matches(name, wanted)) return false;
  if (dot == std::string_view::npos || at == std::string_view::npos) return dot == at;
  return meets(pattern.substr(dot + 1), path.substr(at + 1));
}

void for_each(nn::Model& model, const nn::Policy& policy,
              const std::function<void(const nn::PolicyRow& row, nn::Layer& layer)>& use) {
  for (const auto& row : policy) {
    std::set<const nn::Layer*> seen;
    model.apply([&](torch::nn::Module& module) {
      auto* layer = dynamic_cast<nn::Layer*>(&module);
      if (layer != nullptr && meets(row.layer, layer->path()) && seen.insert(layer).second) use(row, *layer);
    });
  }
}

}  // namespace trireme::shardformer
