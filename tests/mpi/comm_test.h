// What the suites of core/comm share: groups of every kind over the ranks of the test, and expected values.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "core/comm/group.h"

namespace trireme::tests {

/// Groups to run every body on: the world, halves, evens and odds (on 1 rank: a world of one, each).
struct NamedGroup {
  std::string name;
  comm::Group group;
};
const std::vector<NamedGroup>& groups();  ///< collective at the first call

/// All ranks of the world, in order.
std::vector<int> everyone();

/// Small integers that every dtype holds exactly, different on each rank and element: 1, 2 or 3.
at::Tensor values(int rank, at::IntArrayRef shape, at::ScalarType type, int salt = 0);
/// The reduction of values() of all ranks of a group, computed in float64 (or int64 arithmetic for integers).
at::Tensor reduced(const comm::Group& group, at::IntArrayRef shape, at::ScalarType type, comm::ReduceOp op,
                   int salt = 0);

/// Equal in shape, dtype and every bit of value.
bool same(const at::Tensor& actual, const at::Tensor& expected);

const std::vector<at::ScalarType>& all_types();
const char* op_name(comm::ReduceOp op);

}  // namespace trireme::tests
