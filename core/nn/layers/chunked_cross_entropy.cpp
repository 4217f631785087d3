#include "core/nn/layers/chunked_cross_entropy.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "core/base/error.h"
#include "core/base/planned_device.h"
#include "core/nn/autograd/saved_state.h"
#include "core/shard/placement.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A chunk stays in a core's cache; on a GPU it only bounds the memory for a conversion.
constexpr std::int64_t kChunkBytes = 1 << 20, kDeviceChunkBytes = 256 << 20;

/// What both passes know besides tensors.
struct Setting {
  double smoothing = 0;
  bool overwrite = false;
  std::int64_t classes = 0;           ///< of all ranks
  std::optional<comm::Group> group;   ///< unset: the logits are complete
  at::ScalarType dtype = at::kFloat;  ///< of the computation
  bool done = false;                  ///< the logits were overwritten

  [[nodiscard]] shard::Range mine() const {
    return group ? shard::split(classes, group->size(), group->rank()) : shard::Range{0, classes};
  }
};

/// Calls use(first row, number of rows) for each chunk.
template <class Use>
void for_chunks(const at::Tensor& logits, at::ScalarType dtype, const Use& use) {
  const auto bytes = type_of(logits.device()) == c10::kCPU ? kChunkBytes * at::get_num_threads() : kDeviceChunkBytes;
  const auto row = std::max<std::int64_t>(1, logits.size(1) * static_cast<std::int64_t>(c10::elementSize(dtype)));
  const auto rows = std::max<std::int64_t>(1, bytes / row);
  for (std::int64_t at = 0; at < logits.size(0); at += rows) use(at, std::min(rows, logits.size(0) - at));
}

/// The sums over this rank's classes that the loss is made of, by row.
class RowSums {
 public:
  RowSums(const at::Tensor& logits, at::ScalarType dtype)
      : logits_(logits),
        dtype_(dtype),
        largest(at::full({logits.size(0)}, -std::numeric_limits<double>::infinity(), logits.options().dtype(dtype))),
        sums(at::zeros({3, logits.size(0)}, largest.options())) {}
  void find_largest(std::int64_t at, std::int64_t rows) {
    if (logits_.size(1) > 0) largest.narrow(0, at, rows).copy_(at::amax(logits_.narrow(0, at, rows), 1));
  }
  /// `weights`: [classes of this rank], or undefined when the loss has no term of all classes.
  void add_up(std::int64_t at, std::int64_t rows, const at::Tensor& column, const at::Tensor& factors,
              const at::Tensor& weights) {
    if (logits_.size(1) == 0) return;
    auto shifted = at::sub(logits_.narrow(0, at, rows).to(dtype_), largest.narrow(0, at, rows).unsqueeze(1));
    const auto part = sums.narrow(1, at, rows);
    part[1].copy_((shifted.gather(1, column.narrow(0, at, rows)) * factors.narrow(0, at, rows)).sum(1));
    if (weights.defined()) part[2].copy_(shifted.matmul(weights));
    part[0].copy_(shifted.exp_().sum(1));
  }

 private:
  const at::Tensor& logits_;
  at::ScalarType dtype_;

 public:
  at::Tensor largest;  ///< [N]
  /// [3, N], relative to the largest: of the exponentials, of the labels' logits by their factors, of all by weights
  at::Tensor sums;
};

struct ChunkedLoss : torch::autograd::Function<ChunkedLoss> {
  /// logits [N, classes of this rank]
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const TargetRows& rows,
                            const std::shared_ptr<Setting>& setting) {
    const auto mine = setting->mine();
    TRIREME_CHECK(logits.dim() == 2 && logits.size(1) == mine.size() && rows.labels.size(0) == logits.size(0),
                  "a loss over {} of {} classes got {} logits", mine.size(), setting->classes, logits.size(-1));
    save_state(ctx, setting);
    const auto is_local = rows.labels.ge(mine.begin).logical_and_(rows.labels.lt(mine.end));
    const auto column = (rows.labels - mine.begin) * is_local;
    const auto factors = rows.factors * is_local;  // of the labels whose logits this rank has
    at::Tensor all_weights;
    if (setting->smoothing > 0)
      all_weights =
          rows.class_weights.defined() ? rows.class_weights : at::ones({setting->classes}, rows.factors.options());
    const auto weights = all_weights.defined() ? all_weights.narrow(0, mine.begin, mine.size()) : at::Tensor();
    const auto by_row = reduce(logits, column, factors, weights, *setting);
    // By row: the factor of log Z in the terms of the labels, and in those of the smoothing.
    const auto hard = 1 - setting->smoothing;
    const auto log_sum = by_row.sums[0].log();
    auto of_log = rows.factors.sum(1) * hard;
    auto loss = -hard * by_row.sums[1];
    at::Tensor spread;
    if (weights.defined()) {
      spread = rows.shares * (setting->smoothing / static_cast<double>(setting->classes));
      of_log = of_log + spread * all_weights.sum();
      loss = loss - spread * by_row.sums[2];
    }
    ctx->save_for_backward({logits, column, factors * hard, of_log, by_row.largest + log_sum, spread, weights});
    return (loss + of_log * log_sum).sum();
  }

  static RowSums reduce(const at::Tensor& logits, const at::Tensor& column, const at::Tensor& factors,
                        const at::Tensor& weights, const Setting& setting) {
    RowSums by_row(logits, setting.dtype);
    if (!setting.group) {  // each chunk is read once
      for_chunks(logits, setting.dtype, [&](std::int64_t at, std::int64_t rows) {
        by_row.find_largest(at, rows);
        by_row.add_up(at, rows, column, factors, weights);
      });
      return by_row;
    }
    for_chunks(logits, setting.dtype, [&](std::int64_t at, std::int64_t rows) { by_row.find_largest(at, rows); });
    setting.group->all_reduce(by_row.largest, comm::ReduceOp::max);
    for_chunks(logits, setting.dtype,
               [&](std::int64_t at, std::int64_t rows) { by_row.add_up(at, rows, column, factors, weights); });
    setting.group->all_reduce(by_row.sums);
    return by_row;
  }

  // d loss / d logit[c] = softmax[c] x (the row's factor of log Z) - factor [c is the label] - spread w[c]
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto setting = saved_state<Setting>(ctx);
    const auto saved = ctx->get_saved_variables();
    TRIREME_CHECK(!setting->done, "the gradient of logits that were overwritten was asked for again");
    const auto logits = saved[0].detach();
    const auto &column = saved[1], &spread = saved[5], &weights = saved[6];
    const auto factors = saved[2] * grads[0], of_log = saved[3] * grads[0], log_z = saved[4];
    const auto result = setting->overwrite ? logits : at::empty_like(logits);
    setting->done = setting->overwrite;
    const bool converts = logits.scalar_type() != setting->dtype;
    for_chunks(logits, setting->dtype, [&](std::int64_t at, std::int64_t rows) {
      const auto part = [&](const at::Tensor& tensor) { return tensor.narrow(0, at, rows); };
      const auto place = part(result);
      auto gradient = converts ? at::empty(place.sizes(), place.options().dtype(setting->dtype)) : place;
      at::sub_out(gradient, converts ? part(logits).to(setting->dtype) : part(logits), part(log_z).unsqueeze(1));
      gradient.exp_().mul_(part(of_log).unsqueeze(1));
      if (gradient.size(1) > 0) gradient.scatter_add_(1, part(column), -part(factors));
      if (weights.defined()) gradient.sub_((part(spread) * grads[0]).unsqueeze(1) * weights);
      if (converts) place.copy_(gradient);
    });
    return {result, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor chunked_cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const CrossEntropyOptions& options,
                                 std::int64_t classes, const comm::Group* group) {
  const auto setting = std::make_shared<Setting>();
  setting->smoothing = options.label_smoothing;
  setting->overwrite = options.overwrite && logits.is_contiguous();
  setting->classes = classes;
  if (group != nullptr) setting->group = *group;
  setting->dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto rows = target_rows(logits, labels, classes, options, setting->dtype);
  return ChunkedLoss::apply(logits.reshape({rows.labels.size(0), logits.size(-1)}), rows, setting);
}

}  // namespace trireme::nn
