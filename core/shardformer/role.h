// Roles: how tensor and sequence parallelism shard a layer. A policy (core/nn/policy.h) names a role for each layer,
// and an extension may add roles of its own for its layers (docs/extensions.md).
//
// A role acts once, while the model has no memory: it shards parameters (nn::Layer::cut) and replaces computations
// (core/nn/replaceable.h). The layer then computes what it would compute alone, in a share of the work.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/base/registry.h"
#include "core/nn/layer.h"
#include "core/nn/policy.h"
#include "core/shardformer/groups.h"

namespace trireme::shardformer {

/// The features that this rank holds after the last sharded layer that ran.
struct ShardedFeatures {
  std::string by;  ///< path of the layer that sharded them; "" when they are not sharded
  shard::Range mine{};
  std::int64_t width = 0;
};

/// The setting in which the ranks of a sharded layer compute.
struct ParallelContext {
  ParallelGroups groups;
  /// A role whose outputs stay sharded sets it in each forward pass: the layers after it check what they get.
  std::shared_ptr<ShardedFeatures> features;
};

/// What a role does with a layer.
struct LayerRule {
  /// Returns why the layer cannot have the role over these sizes, with the remedy, or "". No rank communicates yet.
  /// Null: any layer can.
  std::function<std::string(const nn::Layer& layer, const ParallelSizes& sizes)> validate;
  /// Shards the layer, along the axes of how.groups. @pre validate() returned ""
  std::function<void(nn::Layer& layer, const ParallelContext& how)> cut;
  [[nodiscard]] const char* missing() const { return cut ? "" : "rule.cut"; }
};

/// A rule for layers of the class L. `what` says in a message what other layers are not: "a linear layer". `validate`
/// may be left out.
template <class L>
LayerRule rule_for(std::string what, std::function<void(L& layer, const ParallelContext& how)> cut,
                   std::function<std::string(const L& layer, const ParallelSizes& sizes)> validate = {}) {
  if (!cut) return {};
  return {[what = std::move(what), validate = std::move(validate)](const nn::Layer& layer, const ParallelSizes& sizes) {
            const auto* own = dynamic_cast<const L*>(&layer);
            if (own == nullptr) return fmt::format("the policy calls \"{}\" {}, which it is not", layer.path(), what);
            return validate ? validate(*own, sizes) : std::string();
          },
          [cut = std::move(cut)](nn::Layer& layer, const ParallelContext& how) { cut(dynamic_cast<L&>(layer), how); }};
}

/// A role for tensor parallelism, over the ranks of ParallelGroups::tensor.
struct TensorRole {
  LayerRule rule;
  /// What the layer gets under sequence parallelism, and which role for that it may have besides this one.
  enum class Tokens {
    slices,      ///< slices of the tokens, which this role treats by the mode: none
    all,         ///< all tokens: `whole`
    all_to_full  ///< all tokens, and every rank has all of the output: `whole`, or one that scatters the output
  } tokens = Tokens::slices;
  bool is_head = false;  ///< of the model: LoRA leaves it out unless it is named
  /// The number of classes, if the layer's output is logits of which each rank returns its part in training with
  /// ParallelGroups::parallel_loss; 0 if it returns all of them. Null: it is no such layer.
  std::function<std::int64_t(const nn::Layer& layer)> classes{};
  [[nodiscard]] const char* missing() const { return rule.missing(); }
};

/// A role for sequence parallelism: the ranks of ParallelGroups::slices() hold slices of the tokens.
struct SequenceRole {
  LayerRule rule;  ///< cut is called after that of a TensorRole of the same layer
  enum class Place {
    outside,  ///< all tokens
    begin,    ///< all tokens in, a slice out
    inside,   ///< slices
    end       ///< a slice in, out what every rank receives
  } place = Place::inside;
  [[nodiscard]] const char* missing() const { return rule.missing(); }
};

/// By their names in a policy.
struct Roles {
  Registry<TensorRole> tensor{"role for tensor parallelism"};
  Registry<SequenceRole> sequence{"role for sequence parallelism"};
};

/// The roles that core/nn/policy.h names. They are defined in the folder shardformer, which core does not include.
Roles all_roles();

/// @throws ConfigError for a name that is not known
template <class Role>
const Role& role_of(const nn::PolicyRow& row, const Registry<Role>& roles) {
  try {
    return roles.at(row.role);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("the policy's entry for \"{}\": {}", row.layer, error.what()));
  }
}
/// Checks the names of all rows, for a run that shards no layer, too. @throws ConfigError as role_of()
inline void check_roles(const nn::Policy& policy, const Roles& roles) {
  for (const auto& row : policy.tensor) role_of(row, roles.tensor);
  for (const auto& row : policy.sequence) role_of(row, roles.sequence);
}

}  // namespace trireme::shardformer
