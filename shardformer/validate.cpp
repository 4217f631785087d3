#include "shardformer/validate.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "core/nn/block.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/embedding.h"
#include "core/nn/layers/gated_linear.h"
#include "shardformer/match.h"
#include "shardformer/sequence/sequence.h"

namespace trireme::shardformer {
namespace {

using nn::SequenceRole;
using nn::TensorRole;

template <class T>
bool is_a(const nn::Layer& layer) {
  return dynamic_cast<const T*>(&layer) != nullptr;
}

std::string validate_attention(const nn::Layer& layer, const ParallelSizes& sizes) {
  const auto* attention = dynamic_cast<const nn::SelfAttention*>(&layer);
  if (attention == nullptr)
    return fmt::format("the policy calls \"{}\" an attention layer, which it is not", layer.path());
  const auto heads = attention->heads();
  if (heads < sizes.tensor)
    return fmt::format("{} ranks cannot share {} attention heads; choose at most {}", sizes.tensor, heads, heads);
  if (sizes.mode == Sequence::all_to_all && heads / sizes.tensor < sizes.sequence)
    return fmt::format(
        "all_to_all needs an attention head for each of {} ranks, but {} {}; choose sp_size at most {}, or the mode "
        "ring_attn",
        sizes.sequence, sizes.tensor > 1 ? "a tensor-parallel rank has only" : "there are only", heads / sizes.tensor,
        heads / sizes.tensor);
  return "";
}

/// Checks a layer against its role. @returns the problem, or ""
std::string validate_tensor(TensorRole role, const nn::Layer& layer, const ParallelSizes& sizes) {
  if (role == TensorRole::attention) return validate_attention(layer, sizes);
  const auto is_not = [&](const char* what) {
    return fmt::format("the policy calls \"{}\" {}, which it is not", layer.path(), what);
  };
  if (role == TensorRole::vocab_parallel_embedding) return is_a<nn::Embedding>(layer) ? "" : is_not("an embedding");
  if (role == TensorRole::sharded_dropout) return is_a<nn::Dropout>(layer) ? "" : is_not("a dropout");
  const bool fits = is_a<nn::Linear>(layer) || (role == TensorRole::column_parallel && is_a<nn::GatedLinear>(layer)) ||
                    (role == TensorRole::classifier_head && (is_a<nn::Embedding>(layer) || is_a<nn::TiedHead>(layer)));
  return fits ? "" : is_not("a linear layer");
}

/// Whether a layer can have both roles: its output is full on each rank, so that it can be scattered.
bool can_have_both(TensorRole tensor, SequenceRole sequence, const nn::Layer& layer) {
  if (tensor == TensorRole::classifier_head)
    return sequence == SequenceRole::whole || (sequence == SequenceRole::scatter_tokens && is_a<nn::Embedding>(layer));
  return (tensor == TensorRole::vocab_parallel_embedding || tensor == TensorRole::column_parallel_gather_output) &&
         (sequence == SequenceRole::whole || sequence == SequenceRole::scatter_tokens);
}

/// Checks one list, and each of its layers by check(row, layer). @returns the first problem, or ""
template <class Role, class Check>
std::string validate_list(nn::Model& model, const std::vector<nn::PolicyRow<Role>>& rows,
                          const std::set<const nn::Layer*>& parts, const Check& check) {
  std::map<const nn::Layer*, std::string> row_of;
  for (const auto& row : rows) {
    const auto layers = layers_of(model, row.layer);
    if (layers.empty())
      return fmt::format("the policy names \"{}\", but the model has no such layer; is the policy for another model?",
                         row.layer);
    for (const auto* layer : layers) {
      const auto [other, inserted] = row_of.try_emplace(layer, row.layer);
      if (!inserted)
        return fmt::format("two entries of the policy, \"{}\" and \"{}\", match the layer \"{}\"; remove one",
                           other->second, row.layer, layer->path());
      if (parts.count(layer) != 0)
        return fmt::format(
            "\"{}\" is part of an attention or gated layer, which is split as a whole: give that layer the role "
            "attention or column_parallel",
            layer->path());
      if (auto why = check(row, *layer); !why.empty()) return why;
    }
  }
  return "";
}

}  // namespace

std::string validate(nn::Model& model, const nn::Policy& policy, const ParallelSizes& sizes) {
  const auto parts = parts_of_layers(model);
  std::map<const nn::Layer*, const nn::PolicyRow<TensorRole>*> sharded;
  auto why = validate_list(model, policy.tensor, parts, [&](const auto& row, const nn::Layer& layer) {
    sharded[&layer] = &row;
    return validate_tensor(row.role, layer, sizes);
  });
  if (!why.empty()) return why;
  why = validate_list(model, policy.sequence, parts, [&](const auto& row, const nn::Layer& layer) {
    const auto found = sharded.find(&layer);
    if (found != sharded.end() && !can_have_both(found->second->role, row.role, layer))
      return fmt::format(
          "the layer \"{}\" has a role for tensor parallelism (\"{}\"), which says how it treats slices of the tokens, "
          "and a role for sequence parallelism (\"{}\"); remove the second",
          layer.path(), found->second->layer, row.layer);
    return validate_sequence(row.role, layer);
  });
  if (why.empty() && sizes.mode != Sequence::none) why = validate_sequence_policy(model, policy);
  return why;
}

}  // namespace trireme::shardformer
