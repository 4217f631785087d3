#include "tests/ranks/comm_test.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "tests/ranks/world.h"

namespace trireme::tests {

using comm::Group;
using comm::ReduceOp;

const std::vector<NamedGroup>& groups() {
  static const std::vector<NamedGroup> all = [] {
    auto& w = world();
    const int n = w.size();
    std::vector<NamedGroup> made{{"world", w.group()}, {"alone", Group::alone("alone", w.rank(), nullptr)}};
    const auto add = [&](const std::string& name, const std::vector<std::vector<int>>& sets) {
      for (const auto& set : sets)
        if (std::find(set.begin(), set.end(), w.rank()) != set.end()) made.push_back({name, w.partition(set, name)});
    };
    std::vector<int> low, high, even, odd, reversed;
    for (int r = 0; r < n; ++r) {
      (r < (n + 1) / 2 ? low : high).push_back(r);
      (r % 2 == 0 ? even : odd).push_back(r);
      reversed.insert(reversed.begin(), r);
    }
    add("half", {low, high});
    add("parity", {even, odd});
    add("reversed", {reversed});
    return made;
  }();
  return all;
}

std::vector<int> everyone() {
  std::vector<int> all;
  for (int r = 0; r < world().size(); ++r) all.push_back(r);
  return all;
}

at::Tensor values(int rank, at::IntArrayRef shape, at::ScalarType type, int salt) {
  std::int64_t count = 1;
  for (const auto size : shape) count *= size;
  const auto index = at::arange(count, at::kLong);
  const auto values = ((index * 7 + rank * 5 + salt * 3).remainder(3) + 1).reshape(shape);
  return (type == at::kBool ? values.remainder(2) : values).to(world().device(), type);
}

at::Tensor reduced(const Group& group, at::IntArrayRef shape, at::ScalarType type, ReduceOp op, int salt) {
  const bool whole = at::isIntegralType(type, /*includeBool=*/true);
  const auto wide = whole ? at::kLong : at::kDouble;
  auto sum = values(group.ranks()[0], shape, type, salt).to(wide);
  for (int r = 1; r < group.size(); ++r) {
    const auto next = values(group.ranks()[static_cast<std::size_t>(r)], shape, type, salt).to(wide);
    switch (op) {
      case ReduceOp::min:
        sum = at::where(next < sum, next, sum);
        break;
      case ReduceOp::max:
        sum = at::where(next > sum, next, sum);
        break;
      case ReduceOp::product:
        sum = sum * next;
        break;
      default:
        sum = sum + next;
    }
  }
  if (op == ReduceOp::avg) sum = whole ? sum.div(group.size(), "trunc") : sum / group.size();
  return sum.to(type);
}

bool same(const at::Tensor& actual, const at::Tensor& expected) {
  return actual.scalar_type() == expected.scalar_type() && actual.sizes() == expected.sizes() &&
         at::equal(actual, expected);
}

const std::vector<at::ScalarType>& all_types() {
  static const auto types = [] {
    std::vector<at::ScalarType> all{at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                    at::kInt,    at::kChar,  at::kByte, at::kBool};
    if (!over_nccl()) all.push_back(at::kShort);  // NCCL does not support it
    return all;
  }();
  return types;
}

const char* op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::product:
      break;
  }
  return "product";
}

}  // namespace trireme::tests
