#include "shardformer/label_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "core/base/error.h"
#include "core/nn/index_checks.h"
#include "core/shard/placement.h"

namespace trireme::shardformer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LabelLoss : torch::autograd::Function<LabelLoss> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& labels, double smoothing,
                            std::int64_t classes, const comm::Group& group) {
    const auto mine = shard::split(classes, group.size(), group.rank());
    TRIREME_CHECK(logits.dim() == 2 && logits.size(1) == mine.size() && labels.size(0) == logits.size(0),
                  "a loss over {} of {} classes got {} logits", mine.size(), classes, logits.size(-1));
    const auto samples = logits.size(0);
    auto largest = mine.size() > 0 ? at::amax(logits, 1)
                                   : at::full({samples}, -std::numeric_limits<double>::infinity(), logits.options());
    group.all_reduce(largest, comm::ReduceOp::max);
    const auto shifted = logits - largest.unsqueeze(1);
    auto softmax = shifted.exp();
    const auto counts = labels.ne(nn::kNoLabel);
    nn::check_labels(labels, classes);
    const auto is_local = labels.ge(mine.begin).logical_and_(labels.lt(mine.end));
    const auto column = (labels - mine.begin).where(is_local, at::zeros({}, labels.options())).unsqueeze(1);
    const auto target =
        mine.size() > 0 ? shifted.gather(1, column).squeeze(1) * is_local : at::zeros({samples}, logits.options());
    auto sums = at::stack({softmax.sum(1), target, shifted.sum(1)});
    group.all_reduce(sums);
    softmax.div_(sums[0].unsqueeze(1));
    ctx->save_for_backward({softmax, column, is_local, counts});
    ctx->saved_data["smoothing"] = smoothing;
    ctx->saved_data["classes"] = classes;
    const auto log_sum = sums[0].log();
    const auto all = static_cast<double>(classes);
    return ((1 - smoothing) * (log_sum - sums[1]) + smoothing * (log_sum - sums[2] / all)).mul(counts).sum();
  }

  // d loss / d logit = softmax - (1 - smoothing) [label] - smoothing / classes
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &softmax = saved[0], &column = saved[1], &is_local = saved[2];
    const double smoothing = ctx->saved_data.at("smoothing").toDouble();
    auto gradient = softmax - smoothing / static_cast<double>(ctx->saved_data.at("classes").toInt());
    if (softmax.size(1) > 0)
      gradient.scatter_add_(1, column, (is_local.to(softmax.scalar_type()) * (smoothing - 1)).unsqueeze(1));
    variable_list result(5);
    result[0] = gradient.mul_(saved[3].unsqueeze(1)).mul_(grads[0]);
    return result;
  }
};

}  // namespace

at::Tensor label_parallel_loss(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing,
                               std::int64_t classes, const comm::Group& group) {
  nn::check_logits(logits, labels);
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return LabelLoss::apply(logits.to(dtype).reshape({labels.numel(), logits.size(-1)}), labels.reshape({-1}),
                          label_smoothing, classes, group);
}

}  // namespace trireme::shardformer
