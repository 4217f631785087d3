#include "models/vit/kind.h"

namespace trireme::models::vit {

// The weights of embeddings and norms are full on every rank.
nn::Policy Kind::policy(const void* /*options*/) const {
  using nn::SequenceRole, nn::TensorRole;
  return {.tensor = {{"vit.encoder.layer.*.attention.attention", TensorRole::attention},
                     {"vit.encoder.layer.*.attention.output.dense", TensorRole::row_parallel},
                     {"vit.encoder.layer.*.intermediate.dense", TensorRole::column_parallel},
                     {"vit.encoder.layer.*.output.dense", TensorRole::row_parallel},
                     {"classifier", TensorRole::classifier_head}},
          .sequence = {{"vit.embeddings", SequenceRole::whole},
                       {"vit.embeddings.patch_embeddings.projection", SequenceRole::whole},
                       {"vit.embeddings.dropout", SequenceRole::scatter_tokens},
                       {"vit.encoder.layer.*.layernorm_before", SequenceRole::token_wise},
                       {"vit.encoder.layer.*.attention.output.dropout", SequenceRole::token_wise},
                       {"vit.encoder.layer.*.layernorm_after", SequenceRole::token_wise},
                       {"vit.encoder.layer.*.output.dropout", SequenceRole::token_wise},
                       {"vit.encoder.layer.*.class_token", SequenceRole::first_token},
                       {"vit.class_token", SequenceRole::gather_tokens},
                       {"vit.layernorm", SequenceRole::whole}}};
}

}  // namespace trireme::models::vit
