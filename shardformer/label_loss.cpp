#include "shardformer/label_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "core/base/error.h"
#include "core/shard/placement.h"

namespace trireme::shardformer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LabelLoss : torch::autograd::Function<LabelLoss> {
  /// logits [N, local classes]
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const nn::TargetRows& rows,
                            double smoothing, std::int64_t classes, const comm::Group& group) {
    const auto mine = shard::split(classes, group.size(), group.rank());
    TRIREME_CHECK(logits.dim() == 2 && logits.size(1) == mine.size() && rows.labels.size(0) == logits.size(0),
                  "a loss over {} of {} classes got {} logits", mine.size(), classes, logits.size(-1));
    const auto samples = logits.size(0);
    auto largest = mine.size() > 0 ? at::amax(logits, 1)
                                   : at::full({samples}, -std::numeric_limits<double>::infinity(), logits.options());
    group.all_reduce(largest, comm::ReduceOp::max);
    const auto shifted = logits - largest.unsqueeze(1);
    auto softmax = shifted.exp();
    const auto is_local = rows.labels.ge(mine.begin).logical_and_(rows.labels.lt(mine.end));
    const auto column = (rows.labels - mine.begin) * is_local;
    const auto factors = rows.factors * is_local;  // of the labels whose logits this rank has
    const auto all_weights = rows.class_weights.defined() ? rows.class_weights : at::ones({classes}, logits.options());
    const auto weights = all_weights.narrow(0, mine.begin, mine.size());
    const auto target = mine.size() > 0 ? (shifted.gather(1, column) * factors).sum(1) : shifted.sum(1);
    auto sums = at::stack({softmax.sum(1), target, shifted.matmul(weights)});
    group.all_reduce(sums);
    softmax.div_(sums[0].unsqueeze(1));
    // By row: the factor of log Z in the terms of the labels, and in those of the smoothing.
    const auto spread = smoothing / static_cast<double>(classes) * rows.shares;
    const auto of_labels = (1 - smoothing) * rows.factors.sum(1), of_all = spread * all_weights.sum();
    ctx->save_for_backward({softmax, column, factors * (1 - smoothing), of_labels + of_all, spread, weights});
    return ((of_labels + of_all) * sums[0].log() - (1 - smoothing) * sums[1] - spread * sums[2]).sum();
  }

  // d loss / d logit[c] = softmax[c] x (the row's factor of log Z) - (1 - smoothing) factor [c is the label] - spread
  // w[c]
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &softmax = saved[0], &column = saved[1], &factors = saved[2], &spread = saved[4], &weights = saved[5];
    auto gradient = softmax * saved[3].unsqueeze(1) - spread.unsqueeze(1) * weights;
    if (softmax.size(1) > 0) gradient.scatter_add_(1, column, -factors);
    variable_list result(5);
    result[0] = gradient.mul_(grads[0]);
    return result;
  }
};

}  // namespace

at::Tensor label_parallel_loss(const at::Tensor& logits, const at::Tensor& labels,
                               const nn::CrossEntropyOptions& options, std::int64_t classes, const comm::Group& group) {
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto rows = nn::target_rows(logits, labels, classes, options, dtype);
  return LabelLoss::apply(logits.to(dtype).reshape({rows.labels.size(0), logits.size(-1)}), rows,
                          options.label_smoothing, classes, group);
}

}  // namespace trireme::shardformer
