// Policy: which layers of a model tensor parallelism cuts, and how: a list by name. Data alone; shardformer/ carries it
// out (shardformer/apply.h), with one policy for each model of ours.
#pragma once

#include <string>
#include <vector>

namespace trireme::nn {

enum class Role {
  heads,            ///< a SelfAttention: each rank has some of the heads
  column,           ///< a Linear: each rank has some of the outputs, which stay apart
  row,              ///< a Linear after heads or column: each rank has some of the inputs; outputs are summed up
  gathered_column,  ///< a Linear: each rank has some of the outputs, which are gathered
};

struct PolicyRow {
  std::string layer;  ///< Layer::path(); '*' stands for any characters but a dot
  Role role;
};
/// Each row must meet a layer of its kind, and no layer two rows. Between a column and its row stand only layers that
/// treat each value by itself, and no Dropout, which would draw a slice's mask as a whole's.
using Policy = std::vector<PolicyRow>;

}  // namespace trireme::nn
