// The policies of the built-in models.
#include <map>

#include "shardformer/apply.h"

namespace trireme::shardformer {
namespace {

using nn::Role;

/// By the name of the ModelKind.
const std::map<std::string, nn::Policy>& policies() {
  static const std::map<std::string, nn::Policy> all{
      // The weights of embeddings and norms are full on every rank.
      {"vit",
       {{"vit.embeddings", Role::whole},
        {"vit.embeddings.patch_embeddings.projection", Role::whole},
        {"vit.embeddings.dropout", Role::scatter_tokens},
        {"vit.encoder.layer.*.layernorm_before", Role::token_wise},
        {"vit.encoder.layer.*.attention.attention", Role::attention},
        {"vit.encoder.layer.*.attention.output.dense", Role::row_parallel},
        {"vit.encoder.layer.*.attention.output.dropout", Role::token_wise},
        {"vit.encoder.layer.*.layernorm_after", Role::token_wise},
        {"vit.encoder.layer.*.intermediate.dense", Role::column_parallel},
        {"vit.encoder.layer.*.output.dense", Role::row_parallel},
        {"vit.encoder.layer.*.output.dropout", Role::token_wise},
        {"vit.encoder.layer.*.class_token", Role::first_token},
        {"vit.class_token", Role::gather_tokens},
        {"vit.layernorm", Role::whole},
        {"classifier", Role::classifier_head}}},
  };
  return all;
}

}  // namespace

const nn::Policy* policy_of(const std::string& kind) {
  const auto found = policies().find(kind);
  return found == policies().end() ? nullptr : &found->second;
}

std::vector<std::string> kinds_with_policy() {
  std::vector<std::string> kinds;
  for (const auto& [kind, policy] : policies()) kinds.push_back(kind);
  return kinds;
}

}  // namespace trireme::shardformer
