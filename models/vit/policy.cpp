#include "models/vit/kind.h"

namespace trireme::models::vit {

// The weights of embeddings and norms are full on every rank.
nn::Policy Kind::policy(const void* /*options*/) const {
  namespace role = nn::role;
  return {.tensor = {{"vit.encoder.layer.*.attention.attention", role::attention},
                     {"vit.encoder.layer.*.attention.output.dense", role::row_parallel},
                     {"vit.encoder.layer.*.intermediate.dense", role::column_parallel},
                     {"vit.encoder.layer.*.output.dense", role::row_parallel},
                     {"classifier", role::classifier_head}},
          .sequence = {{"vit.embeddings", role::whole},
                       {"vit.embeddings.patch_embeddings.projection", role::whole},
                       {"vit.embeddings.dropout", role::scatter_tokens},
                       {"vit.encoder.layer.*.layernorm_before", role::token_wise},
                       {"vit.encoder.layer.*.attention.output.dropout", role::token_wise},
                       {"vit.encoder.layer.*.layernorm_after", role::token_wise},
                       {"vit.encoder.layer.*.output.dropout", role::token_wise},
                       {"vit.encoder.layer.*.class_token", role::first_token},
                       {"vit.class_token", role::gather_tokens},
                       {"vit.layernorm", role::whole}}};
}

}  // namespace trireme::models::vit
