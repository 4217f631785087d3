#include "core/booster/partial_recompute.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/booster/kernel_choice.h"
#include "core/booster/plugin.h"
#include "core/nn/block.h"
#include "core/nn/layers/attention.h"

namespace trireme {
namespace {

/// The layers of these blocks that can be recomputed by themselves, in forward order. Parts that are
/// sharded with another layer are not among them: tensor parallelism computes them together.
std::vector<nn::Layer*> recomputable_layers(nn::Model& model, const std::vector<bool>& recomputed) {
  std::vector<nn::Layer*> layers;
  std::set<const nn::Layer*> seen;
  for (std::size_t i = 0; i < model.blocks().size(); ++i) {
    if (i < recomputed.size() && recomputed[i]) continue;
    const auto all = nn::layers_in(*model.blocks()[i]);
    for (const auto* layer : all)
      for (const auto* part : layer->sharded_parts()) seen.insert(part);
    for (auto* layer : all)
      if (layer->can_recompute() && seen.insert(layer).second) layers.push_back(layer);
  }
  return layers;
}

bool matches_layer(const std::string& pattern, const nn::Layer& layer) {
  return pattern == "attention" ? dynamic_cast<const nn::SelfAttention*>(&layer) != nullptr
                                : text::matches(layer.path(), pattern);
}

[[noreturn]] void fail_unmatched(const std::string& pattern, const std::vector<nn::Layer*>& layers) {
  std::vector<std::string> paths;
  for (const auto* layer : layers) paths.push_back(layer->path());
  throw ConfigError(fmt::format("train.recompute_modules: \"{}\" matches no layer that can be recomputed by itself; {}",
                                pattern,
                                paths.empty() ? "this model has none, set train.recompute = true instead"
                                              : "this model has " + text::first_few(paths, 4)));
}

}  // namespace

std::vector<bool> recomputed_blocks(const TrainOptions& train, const std::vector<std::int64_t>& stages) {
  const auto& counts = train.recompute_layers_per_stage;
  const auto refuse = [](const std::string& why) {
    throw ConfigError(fmt::format("train.recompute_layers_per_stage: {}", why));
  };
  if (!counts.empty() && counts.size() != stages.size())
    refuse(fmt::format("{} numbers for {} stages; give one per stage", counts.size(), stages.size()));
  std::vector<bool> recomputed;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto part = std::llround(train.recompute_ratio * static_cast<double>(stages[s]));
    const auto wanted = counts.empty() ? std::max<std::int64_t>(1, part) : counts[s];
    if (wanted > stages[s]) refuse(fmt::format("stage {} has {} blocks; choose at most {}", s, stages[s], stages[s]));
    for (std::int64_t b = 0; b < stages[s]; ++b) recomputed.push_back(b < wanted);
  }
  if (!recomputed.empty() && std::none_of(recomputed.begin(), recomputed.end(), [](bool is) { return is; }))
    refuse("leaves no block to recompute; choose more, or set train.recompute = false");
  return recomputed;
}

std::vector<nn::Layer*> recomputed_layers(nn::Model& model, const TrainOptions& train,
                                          const std::vector<bool>& blocks) {
  std::vector<nn::Layer*> chosen;
  if (train.recompute_modules.empty()) return chosen;
  const auto all = recomputable_layers(model, {});
  for (const auto& pattern : train.recompute_modules)
    if (std::none_of(all.begin(), all.end(), [&](const auto* layer) { return matches_layer(pattern, *layer); }))
      fail_unmatched(pattern, all);
  std::set<const torch::nn::Module*> inside;  // children of chosen layers: modules() lists a parent before them
  for (auto* layer : recomputable_layers(model, train.recompute ? blocks : std::vector<bool>())) {
    const auto named = [&](const std::string& pattern) { return matches_layer(pattern, *layer); };
    if (inside.count(layer) != 0 || std::none_of(train.recompute_modules.begin(), train.recompute_modules.end(), named))
      continue;
    chosen.push_back(layer);
    for (const auto& child : layer->modules(/*include_self=*/false)) inside.insert(child.get());
  }
  if (chosen.empty())
    throw ConfigError(
        "train.recompute_modules: has no effect: train.recompute recomputes all blocks that have these layers; remove "
        "one of the two, or recompute fewer blocks (train.recompute_ratio)");
  return chosen;
}

void check_recompute(nn::Model& model, const RunSettings& run, const std::vector<std::int64_t>& stages) {
  if (run.train.offload_activations && runs_on_cpu(run))
    throw ConfigError(
        "train.offload_activations: moves what a GPU saves to host memory, but this run computes on CPUs; remove it");
  // Whatever the stages are, all blocks may be recomputed whole.
  const bool all = run.train.recompute_ratio == 1 && run.train.recompute_layers_per_stage.empty();
  const auto blocks =
      stages.empty() ? std::vector<bool>(model.blocks().size(), all) : recomputed_blocks(run.train, stages);
  recomputed_layers(model, run.train, blocks);
}

}  // namespace trireme
