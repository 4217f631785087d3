#include "core/checkpoint/weights/tensor_compare.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace trireme::checkpoint {
namespace {

constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 20;  ///< elements that are converted to double at a time

at::Tensor chunk_of(const at::Tensor& flat, std::int64_t begin) {
  return flat.narrow(0, begin, std::min(kElementsAtOnce, flat.numel() - begin)).to(at::kDouble);
}

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

/// Adds the values' differences. The tensors have the same shape and are contiguous.
void measure(const at::Tensor& a, const at::Tensor& b, TensorDifference& out) {
  const auto flat_a = a.view(-1), flat_b = b.view(-1);
  for (std::int64_t begin = 0; begin < flat_a.numel(); begin += kElementsAtOnce) {
    const auto x = chunk_of(flat_a, begin), y = chunk_of(flat_b, begin);
    const auto same = (x == y).logical_or(at::isnan(x).logical_and(at::isnan(y)));
    const auto count = same.numel() - same.sum().item<std::int64_t>();
    if (count == 0) continue;
    out.elements += count;
    const auto finite = at::isfinite(x).logical_and(at::isfinite(y));
    const auto apart = (x - y).abs();
    const double infinite = std::numeric_limits<double>::infinity();
    const auto largest = [&](const at::Tensor& values) {
      return at::where(same, 0.0, at::where(finite, values, infinite)).max().item<double>();
    };
    out.max_abs = std::max(out.max_abs, largest(apart));
    out.max_rel = std::max(out.max_rel, largest(apart / at::maximum(x.abs(), y.abs())));
  }
}

std::pair<int, Difference> order_of(const TensorDifference& difference) { return {difference.group, difference.kind}; }

}  // namespace

TensorStats stats_of(const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  TensorStats out;
  const auto flat = values.contiguous().view(-1);
  double sum = 0;
  std::int64_t count = 0;
  for (std::int64_t begin = 0; begin < flat.numel(); begin += kElementsAtOnce) {
    const auto chunk = chunk_of(flat, begin);
    const auto finite = chunk.masked_select(at::isfinite(chunk));
    out.nonfinite += chunk.numel() - finite.numel();
    if (finite.numel() == 0) continue;
    const double low = finite.min().item<double>(), high = finite.max().item<double>();
    out.min = count == 0 ? low : std::min(out.min, low);
    out.max = count == 0 ? high : std::max(out.max, high);
    sum += finite.sum().item<double>();
    count += finite.numel();
  }
  if (count > 0) out.mean = sum / static_cast<double>(count);
  return out;
}

Comparison compare(const TensorList& first, const TensorList& second) {
  const at::NoGradGuard no_grad;
  Comparison out;
  for (const auto& [name, tensor] : first.tensors()) {
    const auto found = second.tensors().find(name);
    TensorDifference row{.name = name, .group = tensor.group, .first = tensor.info};
    if (found == second.tensors().end()) {
      row.kind = Difference::only_in_first;
      out.differences.push_back(row);
      continue;
    }
    const auto& other = found->second;
    row.second = other.info;
    if (tensor.info.shape != other.info.shape) {
      row.kind = Difference::shape;
      out.differences.push_back(row);
      continue;
    }
    const auto a = tensor.read().contiguous(), b = other.read().contiguous();
    if (equal_bits(a, b)) {
      ++out.equal;
      continue;
    }
    measure(a, b, row);
    out.differences.push_back(row);
  }
  for (const auto& [name, tensor] : second.tensors())
    if (!first.tensors().contains(name))
      out.differences.push_back(
          {.name = name, .group = tensor.group, .kind = Difference::only_in_second, .second = tensor.info});
  std::stable_sort(out.differences.begin(), out.differences.end(), [](const auto& a, const auto& b) {
    return order_of(a) != order_of(b) ? order_of(a) < order_of(b) : a.max_abs > b.max_abs;
  });
  return out;
}

}  // namespace trireme::checkpoint
