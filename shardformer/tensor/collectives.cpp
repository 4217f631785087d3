#include "shardformer/tensor/collectives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/base/error.h"
#include "core/shard/placement.h"

namespace trireme::shardformer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SumOver : torch::autograd::Function<SumOver> {
  static at::Tensor forward(AutogradContext* ctx, at::Tensor x, const comm::Group& group) {
    ctx->mark_dirty({x});
    group.all_reduce(x);
    return x;
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], at::Tensor()}; }
};

struct GatherLastDim : torch::autograd::Function<GatherLastDim> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, std::int64_t size, std::int64_t unit,
                            const comm::Group& group) {
    std::vector<at::Tensor> slices;
    auto shape = x.sizes().vec();
    for (int r = 0; r < group.size(); ++r) {
      const auto units = shard::split(size / unit, group.size(), r);
      shape.back() = units.size() * unit;
      slices.push_back(at::empty(shape, x.options()));
      if (r != group.rank()) continue;
      TRIREME_CHECK(x.size(-1) == shape.back(), "got {} features to gather, expected {}", x.size(-1), shape.back());
      ctx->saved_data["begin"] = units.begin * unit;
      ctx->saved_data["length"] = shape.back();
    }
    group.all_gather(slices, x.contiguous());
    return at::cat(slices, -1);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto begin = ctx->saved_data.at("begin").toInt(), length = ctx->saved_data.at("length").toInt();
    return {grads[0].narrow(-1, begin, length), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor sum_over(at::Tensor x, const comm::Group& group) {
  return group.size() == 1 ? x : SumOver::apply(std::move(x), group);
}

at::Tensor gather_last_dim(const at::Tensor& x, std::int64_t size, std::int64_t unit, const comm::Group& group) {
  return group.size() == 1 ? x : GatherLastDim::apply(x, size, unit, group);
}

}  // namespace trireme::shardformer
