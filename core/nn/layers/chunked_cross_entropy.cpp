#include "core/nn/layers/chunked_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sub.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "core/base/error.h"
#include "core/nn/autograd/saved_state.h"
#include "core/nn/layers/loss_rows.h"
#include "core/shard/placement.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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

struct ChunkedLoss : torch::autograd::Function<ChunkedLoss> {
  /// logits [N, classes of this rank]
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const TargetRows& rows,
                            const std::shared_ptr<Setting>& setting) {
    const auto mine = setting->mine();
    TRIREME_CHECK(logits.dim() == 2 && logits.size(1) == mine.size() && rows.labels.size(0) == logits.size(0),
                  "a loss over {} of {} classes got {} logits", mine.size(), setting->classes, logits.size(-1));
    save_state(ctx, setting);
    const LossRows targets(rows, mine, setting->classes, setting->smoothing);
    const auto by_row = reduce(logits, targets, *setting);
    ctx->save_for_backward({logits, by_row.largest + by_row.sums[0].log(), targets.column, targets.factors,
                            targets.of_log, targets.spread, targets.weights});
    return targets.loss(by_row.sums);
  }

  static RowSums reduce(const at::Tensor& logits, const LossRows& targets, const Setting& setting) {
    RowSums out(logits.size(0), logits.options().dtype(setting.dtype));
    const auto find_largest = [&](std::int64_t at, std::int64_t rows) {
      out.find_largest(logits.narrow(0, at, rows), at);
    };
    const auto add_up = [&](std::int64_t at, std::int64_t rows) {
      const auto shifted =
          at::sub(logits.narrow(0, at, rows).to(setting.dtype), out.largest.narrow(0, at, rows).unsqueeze(1));
      targets.narrow(at, rows).add_up(shifted, out.sums.narrow(1, at, rows));
    };
    if (!setting.group) {  // each chunk is read once
      for_row_chunks(logits, setting.dtype, [&](std::int64_t at, std::int64_t rows) {
        find_largest(at, rows);
        add_up(at, rows);
      });
      return out;
    }
    for_row_chunks(logits, setting.dtype, find_largest);
    setting.group->all_reduce(out.largest, comm::ReduceOp::max);
    for_row_chunks(logits, setting.dtype, add_up);
    setting.group->all_reduce(out.sums);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto setting = saved_state<Setting>(ctx);
    const auto saved = ctx->get_saved_variables();
    TRIREME_CHECK(!setting->done, "the gradient of logits that were overwritten was asked for again");
    const auto logits = saved[0].detach(), log_z = saved[1];
    LossRows targets;
    targets.column = saved[2];
    targets.factors = saved[3];
    targets.of_log = saved[4];
    targets.spread = saved[5];
    targets.weights = saved[6];
    targets = targets * grads[0];
    const auto result = setting->overwrite ? logits : at::empty_like(logits);
    setting->done = setting->overwrite;
    const bool converts = logits.scalar_type() != setting->dtype;
    for_row_chunks(logits, setting->dtype, [&](std::int64_t at, std::int64_t rows) {
      const auto part = logits.narrow(0, at, rows), place = result.narrow(0, at, rows);
      const auto of_rows = targets.narrow(at, rows);
      auto gradient = converts ? at::empty(place.sizes(), place.options().dtype(setting->dtype)) : place;
      at::sub_out(gradient, converts ? part.to(setting->dtype) : part, log_z.narrow(0, at, rows).unsqueeze(1));
      gradient.exp_().mul_(of_rows.of_log.unsqueeze(1));
      of_rows.complete_gradient(gradient);
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
