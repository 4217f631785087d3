// Policy: which layers of a model tensor parallelism cuts, and how, and between which ones sequence parallelism cuts
// the tokens: a list by name. Data alone; shardformer/ carries it out (shardformer/apply.h), with one policy for each
// model of ours.
#pragma once

#include <string>
#include <vector>

namespace trireme::nn {

enum class Role {
  heads,            ///< a SelfAttention: each rank has some of the heads
  column,           ///< a Linear: each rank has some of the outputs, which stay apart
  row,              ///< a Linear after heads or column: each rank has some of the inputs; outputs are summed up
  inside,           ///< a Dropout between heads or a column and the row: draws the mask of the features that are here
  gathered_column,  ///< a Linear: each rank has some of the outputs, which are gathered; it sees whole inputs
  labels,           ///< the same for the logits; in training they stay apart where the loss can be computed so. Also an
                    ///< Embedding whose scores they are
  vocabulary,       ///< an Embedding: each rank has some of the words; its scores are gathered
  // Of sequence parallelism alone; a rank has some of the tokens of each sample (dim 1) from the first to the last.
  scatter_tokens,  ///< the first: its outputs are whole, and each rank goes on with its slice
  by_token,        ///< treats each token by itself (a norm, a dropout): sees slices
  first_token,     ///< a FirstToken: the first rank alone has something
  gather_tokens,   ///< the last: a FirstToken, which every rank gets
  whole,           ///< before the first or after the last: sees whole samples
};

struct PolicyRow {
  std::string layer;  ///< Layer::path(); '*' stands for any characters but a dot
  Role role;
};
/// Each row must meet a layer of its kind, and no layer two rows. Between a column and its row stand only layers that
/// treat each value by itself. For sequence parallelism every layer with parameters, and every Dropout, must have a
/// role.
using Policy = std::vector<PolicyRow>;

}  // namespace trireme::nn
