#include "core/nn/block.h"
#include "models/vit/kind.h"

namespace trireme::models::vit {

// The weights of embeddings and norms are full on every rank.
nn::Policy Kind::policy(const void* /*options*/) const {
  using nn::Role;
  return {{"vit.embeddings", Role::whole},
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
          {"classifier", Role::classifier_head}};
}

}  // namespace trireme::models::vit
