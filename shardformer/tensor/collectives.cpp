#include "shardformer/tensor/collectives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/nn/autograd/saved_state.h"
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

struct AllToAll : torch::autograd::Function<AllToAll> {
  using Counts = std::vector<std::int64_t>;
  struct Way {
    Counts sent, received;
    comm::Group group;
  };
  static at::Tensor exchanged(const at::Tensor& x, const Counts& sent, const Counts& received,
                              const comm::Group& group) {
    auto shape = x.sizes().vec();
    shape[0] = std::accumulate(received.begin(), received.end(), std::int64_t{0});
    auto out = at::empty(shape, x.options());
    group.all_to_all(out.split_with_sizes(received), x.contiguous().split_with_sizes(sent));
    return out;
  }
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const std::shared_ptr<Way>& way) {
    nn::save_state(ctx, way);
    return exchanged(x, way->sent, way->received, way->group);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto way = nn::saved_state<Way>(ctx);
    return {exchanged(grads[0], way->received, way->sent, way->group), at::Tensor()};
  }
};

}  // namespace

at::Tensor sum_over(at::Tensor x, const comm::Group& group) {
  return group.size() == 1 ? x : SumOver::apply(std::move(x), group);
}

at::Tensor gather_last_dim(const at::Tensor& x, std::int64_t size, std::int64_t unit, const comm::Group& group) {
  return group.size() == 1 ? x : GatherLastDim::apply(x, size, unit, group);
}

at::Tensor all_to_all(const at::Tensor& x, const std::vector<std::int64_t>& send_counts,
                      const std::vector<std::int64_t>& receive_counts, const comm::Group& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto rows = std::accumulate(send_counts.begin(), send_counts.end(), std::int64_t{0});
  TRIREME_CHECK(send_counts.size() == ranks && receive_counts.size() == ranks && x.dim() > 0 && rows == x.size(0),
                "got {} and {} counts for {} ranks, to send {} of {} rows", send_counts.size(), receive_counts.size(),
                ranks, rows, x.dim() > 0 ? x.size(0) : 0);
  if (ranks == 1) return x;
  return AllToAll::apply(x, std::make_shared<AllToAll::Way>(AllToAll::Way{send_counts, receive_counts, group}));
}

}  // namespace trireme::shardformer
