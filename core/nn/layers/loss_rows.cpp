#include "core/nn/layers/loss_rows.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "core/base/planned_device.h"

namespace trireme::nn {

LossRows::LossRows(const TargetRows& rows, shard::Range mine, std::int64_t classes, double smoothing) {
  const auto is_local = rows.labels.ge(mine.begin).logical_and_(rows.labels.lt(mine.end));
  const auto hard = 1 - smoothing;
  column = (rows.labels - mine.begin) * is_local;
  factors = rows.factors * is_local * hard;
  of_log = rows.factors.sum(1) * hard;
  if (smoothing == 0) return;
  const auto all = rows.class_weights.defined() ? rows.class_weights : at::ones({classes}, rows.factors.options());
  weights = all.narrow(0, mine.begin, mine.size());
  spread = rows.shares * (smoothing / static_cast<double>(classes));
  of_log = of_log + spread * all.sum();
}

LossRows LossRows::narrow(std::int64_t begin, std::int64_t count) const {
  LossRows part;
  part.column = column.narrow(0, begin, count);
  part.factors = factors.narrow(0, begin, count);
  part.of_log = of_log.narrow(0, begin, count);
  if (spread.defined()) part.spread = spread.narrow(0, begin, count);
  part.weights = weights;
  return part;
}

LossRows LossRows::operator*(const at::Tensor& scale) const {
  auto scaled = *this;
  scaled.factors = factors * scale;
  scaled.of_log = of_log * scale;
  if (spread.defined()) scaled.spread = spread * scale;
  return scaled;
}

void LossRows::add_up(at::Tensor shifted, const at::Tensor& sums) const {
  if (shifted.size(1) == 0) return;
  sums[1].copy_((shifted.gather(1, column) * factors).sum(1));
  if (spread.defined()) sums[2].copy_(shifted.matmul(weights) * spread);
  sums[0].copy_(shifted.exp_().sum(1));
}

at::Tensor LossRows::loss(const at::Tensor& sums) const { return (of_log * sums[0].log() - sums[1] - sums[2]).sum(); }

void LossRows::complete_gradient(at::Tensor softmax_of_log) const {
  if (softmax_of_log.size(1) == 0) return;
  softmax_of_log.scatter_add_(1, column, -factors);
  if (spread.defined()) softmax_of_log.sub_(spread.unsqueeze(1) * weights);
}

RowSums::RowSums(std::int64_t rows, const at::TensorOptions& options)
    : largest(at::full({rows}, -std::numeric_limits<double>::infinity(), options)),
      sums(at::zeros({3, rows}, options)) {}

void RowSums::find_largest(const at::Tensor& logits, std::int64_t begin) {
  if (logits.size(1) > 0) largest.narrow(0, begin, logits.size(0)).copy_(at::amax(logits, 1));
}

void for_row_chunks(const at::Tensor& logits, at::ScalarType dtype,
                    const std::function<void(std::int64_t begin, std::int64_t rows)>& use) {
  constexpr std::int64_t kBytes = 1 << 20, kDeviceBytes = 256 << 20;
  const auto bytes = type_of(logits.device()) == c10::kCPU ? kBytes * at::get_num_threads() : kDeviceBytes;
  const auto row = std::max<std::int64_t>(1, logits.size(1) * static_cast<std::int64_t>(c10::elementSize(dtype)));
  const auto rows = std::max<std::int64_t>(1, bytes / row);
  for (std::int64_t at = 0; at < logits.size(0); at += rows) use(at, std::min(rows, logits.size(0) - at));
}

}  // namespace trireme::nn
