// Policy: how tensor parallelism and sequence parallelism treat each layer of a model, as two lists by layer name. A
// policy is only data; shardformer/apply.h applies it.
#pragma once

#include <string>
#include <vector>

namespace trireme::nn {

/// Tensor parallelism: each rank holds a part of the layer's parameters.
enum class TensorRole {
  attention,                      ///< a SelfAttention; each rank holds some of the heads
  column_parallel,                ///< a Linear or GatedLinear; each rank holds some of the outputs, which stay sharded
  row_parallel,                   ///< a Linear after attention or column_parallel; each rank holds some of the inputs,
                                  ///< and the outputs are summed over the ranks
  sharded_dropout,                ///< a Dropout between attention or column_parallel and row_parallel; it draws the
                                  ///< part of the mask that belongs to this rank's features
  column_parallel_gather_output,  ///< a Linear; each rank holds some of the outputs, and they are gathered
  classifier_head,                ///< the same for the logits, but in training they are not gathered where the loss can
                                  ///< be computed without; also an Embedding whose scores are the logits, and a
                                  ///< TiedHead of one
  vocab_parallel_embedding,       ///< an Embedding; each rank holds the vectors of some of the token ids
};

/// Sequence parallelism: between two layers, each rank holds a slice of each sample's tokens (dim 1).
enum class SequenceRole {
  scatter_tokens,  ///< the first of the two: its output has all tokens, and each rank continues with its slice
  gather_tokens,   ///< the last, a FirstToken or AllTokens: every rank receives its output
  // Layers between them, before them and after them:
  token_wise,   ///< treats each token by itself (a norm, a dropout), so it can be given slices
  first_token,  ///< a FirstToken; only the first rank has an output
  whole,        ///< its input has all tokens of a sample
};

template <class Role>
struct PolicyRow {
  std::string layer;  ///< Layer::path(); '*' matches any characters except a dot
  Role role;
};

/// Each row must match a layer of its kind, and no layer may match two rows of a list. Between a column_parallel layer
/// and its row_parallel layer, only elementwise layers are allowed. Under sequence parallelism every layer with
/// parameters, and every Dropout, needs a role in one of the lists. A layer has roles in both only where its output is
/// full on every rank: it may then be whole, or the one that scatters the tokens.
struct Policy {
  std::vector<PolicyRow<TensorRole>> tensor{};
  std::vector<PolicyRow<SequenceRole>> sequence{};
  [[nodiscard]] bool empty() const { return tensor.empty() && sequence.empty(); }
};

}  // namespace trireme::nn
