#include "shardformer/match.h"

#include <set>

#include "core/base/text.h"
#include "core/base/verdict.h"
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

std::vector<nn::Layer*> layers_of(nn::Model& model, std::string_view pattern) {
  std::vector<nn::Layer*> found;
  std::set<const nn::Layer*> seen;
  model.apply([&](torch::nn::Module& module) {
    auto* layer = dynamic_cast<nn::Layer*>(&module);
    if (layer != nullptr && meets(pattern, layer->path()) && seen.insert(layer).second) found.push_back(layer);
  });
  if (found.empty())
    throw ConfigError(fmt::format(
        "the policy names \"{}\", but the model has no such layer; is the policy for another model?", pattern));
  return found;
}

void rethrow_from_role(const nn::PolicyRow& row, const nn::Layer& layer, const std::string& doing) {
  const auto verdict = verdict_on(std::current_exception());
  if (!verdict.unexpected && verdict.exit_code != static_cast<int>(ExitCode::config)) throw;
  throw ConfigError(fmt::format("the role \"{}\" of \"{}\": {}: {}", row.role, layer.path(), doing, verdict.message));
}

std::map<const nn::Layer*, const nn::Layer*> parts_of_layers(nn::Model& model) {
  std::map<const nn::Layer*, const nn::Layer*> parts;
  model.apply([&](torch::nn::Module& module) {
    const auto* layer = dynamic_cast<nn::Layer*>(&module);
    if (layer == nullptr) return;
    for (const auto* part : layer->sharded_parts()) parts.emplace(part, layer);
  });
  return parts;
}

}  // namespace trireme::shardformer
