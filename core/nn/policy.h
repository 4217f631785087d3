// Policy: how tensor parallelism and sequence parallelism treat each layer of a model, as two lists by layer name. A
// policy is only data; shardformer/apply.h applies it.
#pragma once

#include <string>
#include <vector>

namespace trireme::nn {

/// The names of Trireme's own roles. An extension adds roles with other names (core/shardformer/role.h).
namespace role {

// Tensor parallelism: each rank holds a part of the layer's parameters.
inline constexpr auto attention = "attention";  ///< a SelfAttention; each rank holds some of the heads
/// A Linear, and a GatedLinear; each rank holds some of the outputs, which stay sharded.
inline constexpr auto column_parallel = "column_parallel", gated_column_parallel = "gated_column_parallel";
/// A Linear after one of these; each rank holds some of the inputs, and the outputs are summed over the ranks.
inline constexpr auto row_parallel = "row_parallel";
/// A Dropout between one of these and row_parallel; it draws the part of the mask for this rank's features.
inline constexpr auto sharded_dropout = "sharded_dropout";
/// A Linear; each rank holds some of the outputs, and they are gathered.
inline constexpr auto column_parallel_gather_output = "column_parallel_gather_output";
/// The same for the logits, but in training they are not gathered where the loss can be computed without.
inline constexpr auto classifier_head = "classifier_head";
/// An Embedding; each rank holds the vectors of some of the token ids.
inline constexpr auto vocab_parallel_embedding = "vocab_parallel_embedding";
/// An Embedding whose scores are the logits, as of a classifier_head; and a TiedHead of it.
inline constexpr auto tied_embedding = "tied_embedding", tied_head = "tied_head";

// Sequence parallelism: between two layers, each rank holds a slice of each sample's tokens (dim 1).
/// The first of the two: its output has all tokens, and each rank continues with its slice.
inline constexpr auto scatter_tokens = "scatter_tokens";
/// The last, a FirstToken or AllTokens: every rank receives its output.
inline constexpr auto gather_tokens = "gather_tokens";
// Layers between them, before them and after them:
inline constexpr auto token_wise = "token_wise";    ///< treats each token by itself (a norm, a dropout)
inline constexpr auto first_token = "first_token";  ///< a FirstToken; only the first rank has an output
inline constexpr auto whole = "whole";              ///< its input has all tokens of a sample

}  // namespace role

struct PolicyRow {
  std::string layer;  ///< Layer::path(); '*' matches any characters except a dot
  std::string role;   ///< of the registry of its list (core/shardformer/role.h)
};

/// Each row must match a layer of its kind, and no layer may match two rows of a list. Between a column_parallel layer
/// and its row_parallel layer, only elementwise layers are allowed. Under sequence parallelism every layer with
/// parameters, and every Dropout, needs a role in one of the lists. A layer has roles in both only where its output is
/// full on every rank: it may then be whole, or the one that scatters the tokens.
struct Policy {
  std::vector<PolicyRow> tensor{};
  std::vector<PolicyRow> sequence{};
  [[nodiscard]] bool empty() const { return tensor.empty() && sequence.empty(); }
};

}  // namespace trireme::nn
