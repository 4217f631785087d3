#include "shardformer/sequence/slices.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "core/base/error.h"
#include "core/nn/autograd/saved_state.h"

namespace trireme::shardformer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void save_group(AutogradContext* ctx, const comm::Group& group) {
  nn::save_state(ctx, std::make_shared<comm::Group>(group));
}
const comm::Group& saved_group(AutogradContext* ctx) { return *nn::saved_state<comm::Group>(ctx); }

at::Tensor slice_of(const at::Tensor& x, const comm::Group& group) {
  const auto mine = local_tokens(x.size(1), group);
  return x.narrow(1, mine.begin, mine.size()).contiguous();
}

/// This rank's slice of x, or of the sum of all ranks' x.
struct ToSlices : torch::autograd::Function<ToSlices> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const comm::Group& group, bool sums) {
    save_group(ctx, group);
    ctx->saved_data["tokens"] = x.size(1);
    return sums ? reduce_scatter_async(x, group).wait() : slice_of(x, group);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto whole = gather_async(grads[0], ctx->saved_data.at("tokens").toInt(), saved_group(ctx)).wait();
    return {std::move(whole), at::Tensor(), at::Tensor()};
  }
};

struct GatherTokens : torch::autograd::Function<GatherTokens> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, std::int64_t tokens, const comm::Group& group,
                            bool same_gradient) {
    save_group(ctx, group);
    ctx->saved_data["same_gradient"] = same_gradient;
    return gather_async(x, tokens, group).wait();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& group = saved_group(ctx);
    auto mine = ctx->saved_data.at("same_gradient").toBool() ? slice_of(grads[0], group)
                                                             : reduce_scatter_async(grads[0], group).wait();
    return {std::move(mine), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct FirstTokenToAll : torch::autograd::Function<FirstTokenToAll> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const comm::Group& group) {
    ctx->saved_data["sizes"] = x.sizes().vec();
    ctx->saved_data["has_it"] = group.rank() == 0;
    auto shape = x.sizes().vec();
    shape[1] = 1;
    auto token =
        group.rank() == 0 ? x.narrow(1, 0, 1).clone(at::MemoryFormat::Contiguous) : at::empty(shape, x.options());
    group.broadcast(token, 0);
    return token;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto whole = at::zeros(ctx->saved_data.at("sizes").toIntVector(), grads[0].options());
    if (ctx->saved_data.at("has_it").toBool()) whole.narrow(1, 0, 1).copy_(grads[0]);
    return {whole, at::Tensor()};
  }
};

struct SumGradients : torch::autograd::Function<SumGradients> {
  // TensorList is the only list type whose tensors become inputs of the node.
  static variable_list forward(AutogradContext* ctx, at::TensorList parameters, const comm::Group& group) {
    save_group(ctx, group);
    variable_list same;
    for (const auto& parameter : parameters) same.push_back(parameter.detach());
    return same;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list flat;
    for (std::size_t i = 0; i < grads.size(); ++i)
      if (ctx->needs_input_grad(i)) flat.push_back(grads[i].reshape(-1));
    auto sum = flat.size() == 1 ? flat.front().clone() : at::cat(flat);
    saved_group(ctx).all_reduce(sum);
    std::int64_t at = 0;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!ctx->needs_input_grad(i)) {
        grads[i] = at::Tensor();
        continue;
      }
      const auto size = grads[i].numel();
      grads[i] = sum.narrow(0, std::exchange(at, at + size), size).view(grads[i].sizes());
    }
    grads.emplace_back();  // for the group, which has none
    return grads;
  }
};

}  // namespace

shard::Range local_tokens(std::int64_t tokens, const comm::Group& group) {
  return shard::split(tokens, group.size(), group.rank());
}

at::Tensor Gathering::wait() {
  work.wait();
  return slices.size() == 1 ? slices.front() : at::cat(std::exchange(slices, {}), 1);
}

Gathering gather_async(const at::Tensor& slice, std::int64_t tokens, const comm::Group& group) {
  TRIREME_CHECK(slice.size(1) == local_tokens(tokens, group).size(), "rank {} of {} has {} of {} tokens", group.rank(),
                group.size(), slice.size(1), tokens);
  Gathering under_way;
  auto shape = slice.sizes().vec();
  for (int r = 0; r < group.size(); ++r) {
    shape[1] = shard::split(tokens, group.size(), r).size();
    under_way.slices.push_back(at::empty(shape, slice.options()));
  }
  under_way.work = group.all_gather_async(under_way.slices, slice.contiguous());
  return under_way;
}

at::Tensor Reduction::wait() {
  work.wait();
  return slice;
}

Reduction reduce_scatter_async(const at::Tensor& whole, const comm::Group& group) {
  std::vector<at::Tensor> parts;
  for (int r = 0; r < group.size(); ++r) {
    const auto range = shard::split(whole.size(1), group.size(), r);
    parts.push_back(whole.narrow(1, range.begin, range.size()).contiguous());
  }
  Reduction under_way;
  under_way.slice = at::empty(parts[static_cast<std::size_t>(group.rank())].sizes(), whole.options());
  under_way.work = group.reduce_scatter_async(under_way.slice, std::move(parts));
  return under_way;
}

at::Tensor scatter_tokens(const at::Tensor& x, const comm::Group& group) {
  return group.size() == 1 ? x : ToSlices::apply(x, group, /*sums=*/false);
}

at::Tensor sum_to_slices(const at::Tensor& x, const comm::Group& group) {
  return group.size() == 1 ? x : ToSlices::apply(x, group, /*sums=*/true);
}

at::Tensor gather_tokens(const at::Tensor& x, std::int64_t tokens, const comm::Group& group, bool same_gradient) {
  return group.size() == 1 ? x : GatherTokens::apply(x, tokens, group, same_gradient);
}

at::Tensor first_token_to_all(const at::Tensor& x, const comm::Group& group) {
  return FirstTokenToAll::apply(x, group);
}

std::vector<at::Tensor> sum_gradients(const std::vector<at::Tensor>& parameters, const comm::Group& group) {
  return group.size() == 1 ? parameters : SumGradients::apply(at::TensorList(parameters), group);
}

}  // namespace trireme::shardformer
