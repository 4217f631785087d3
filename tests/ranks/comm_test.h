// Shared parts of the suites of core/comm: groups of every kind over the ranks of the test, and expected values.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "core/comm/group.h"

namespace trireme::tests {

/// Groups to run every test body on: the world in both orders, each rank alone, halves, and even and odd ranks.
struct NamedGroup {
  std::string name;
  comm::Group group;
};
const std::vector<NamedGroup>& groups();  ///< the first call is collective

/// All ranks of the world, in order.
std::vector<int> everyone();

/// Small integers that every dtype represents exactly and that vary with rank and element: 1, 2 or 3.
at::Tensor values(int rank, at::IntArrayRef shape, at::ScalarType type, int salt = 0);
/// The reduction of values() of all ranks of a group, computed in float64 (or int64 arithmetic for integers).
at::Tensor reduced(const comm::Group& group, at::IntArrayRef shape, at::ScalarType type, comm::ReduceOp op,
                   int salt = 0);

/// Whether shapes, dtypes and all values are equal.
bool same(const at::Tensor& actual, const at::Tensor& expected);

const std::vector<at::ScalarType>& all_types();
const char* op_name(comm::ReduceOp op);

}  // namespace trireme::tests
