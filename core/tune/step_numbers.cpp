#include "core/tune/step_numbers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/comm/host_values.h"

namespace trireme::tune {
namespace {

/// Elements are sketched in rows. The signs of a row are those of the row before, kShift further on.
constexpr std::int64_t kRow = 16 * kSketch, kRowsAtOnce = 64, kShift = 4031;
constexpr std::int64_t kSigns = std::int64_t{1} << 21;
constexpr std::int64_t kFirsts =
    kSigns - kRowsAtOnce * kShift - kRow;  ///< places at which the signs of a tensor can begin
static_assert(kFirsts > 0);

// Bounds of ErrorBound, see there.
constexpr double kLeastOfChange = 1e-2, kMostOfChange = 0.5, kMostOfGradients = 0.2, kMostOfDefault = 0.1;

at::ScalarType bits_of(at::ScalarType type) {
  switch (c10::elementSize(type)) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

/// Depends on each bit and on the order of the elements; integers, so that no order of summation matters.
std::uint64_t digest_of(const at::Tensor& values) {
  const auto bits = values.view(bits_of(values.scalar_type())).to(at::kLong);
  const auto odd = at::arange(1, 2 * bits.numel() + 1, 2, bits.options());
  return static_cast<std::uint64_t>((bits * odd).sum().item<std::int64_t>());
}

/// Of those that are not 0, which a block without gradients has.
double median(std::vector<double> values) {
  std::erase(values, 0.0);
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

double norm_of(double squares) { return std::isfinite(squares) ? std::sqrt(squares) : INFINITY; }

}  // namespace

Sketcher::Sketcher(std::map<std::string, std::size_t> block_of, std::size_t blocks)
    : block_of_(std::move(block_of)), blocks_(blocks) {
  constexpr std::uint64_t kSeed = 20'040'613;
  const memory::OfHost not_the_run;
  signs_ = at::randint(0, 2, {kSigns}, at::make_generator<at::CPUGeneratorImpl>(kSeed), at::dtype(at::kDouble))
               .mul_(2)
               .sub_(1);
}

Sketch Sketcher::of(const std::vector<shard::Slice>& slices) const {
  const memory::OfHost not_the_run;
  Sketch sketch{at::zeros({static_cast<std::int64_t>(blocks_), kSketch}, at::kDouble), 0};
  at::Tensor signs, sums;
  for (const auto& [placement, value] : slices) {
    const auto block = block_of_.find(placement.name);
    if (block == block_of_.end() || value.numel() == 0) continue;
    if (!signs.defined()) {
      signs = signs_.to(value.device());
      sums = sketch.sums.to(value.device());
    }
    const auto flat = value.detach().contiguous().view({-1});
    auto sum = sums[static_cast<std::int64_t>(block->second)];
    // The signs of each tensor begin elsewhere, so that tensors do not cancel or double each other.
    auto first = static_cast<std::int64_t>(std::hash<std::string>()(placement.name) % kFirsts);
    for (std::int64_t begin = 0; begin < flat.numel();) {
      const auto rows = std::min((flat.numel() - begin) / kRow, kRowsAtOnce);
      const auto size = rows > 0 ? rows * kRow : flat.numel() - begin;
      const auto part = flat.narrow(0, begin, size);
      sketch.digest = sketch.digest * 0x9E3779B97F4A7C15ULL + digest_of(part);
      const auto whole = rows > 0 ? part : at::constant_pad_nd(part, {0, kRow - size});
      const auto of_rows = signs.as_strided({std::max<std::int64_t>(rows, 1), kRow}, {kShift, 1}, first);
      sum.add_((whole.view({-1, kRow}) * of_rows).view({-1, kSketch}).sum(0));
      first = (first + 7919) % kFirsts;
      begin += size;
    }
  }
  if (sums.defined()) sketch.sums = sums.to(at::kCPU);
  return sketch;
}

bool StepNumbers::same_bits(const StepNumbers& other) const {
  return loss == other.loss && gradients.digest == other.gradients.digest && change.digest == other.change.digest;
}

double StepErrors::largest() const {
  double largest = 0;
  for (const auto* errors : {&loss, &gradients})
    for (const double error : *errors) largest = std::max(largest, error);
  return largest;
}

StepErrors errors_of(const std::vector<StepNumbers>& got, const std::vector<StepNumbers>& expected,
                     const comm::Group* ranks) {
  TRIREME_CHECK(got.size() == expected.size(), "{} steps are compared with {}", got.size(), expected.size());
  const auto squares_of = [](const at::Tensor& sums) {
    const auto squares = sums.square().sum(1).contiguous();
    return std::vector<double>(squares.const_data_ptr<double>(), squares.const_data_ptr<double>() + squares.numel());
  };
  std::vector<double> squares;  // of the distance and of what is expected, by turns
  StepErrors errors;
  for (std::size_t step = 0; step < got.size(); ++step) {
    const double off = std::abs(got[step].loss - expected[step].loss) / std::abs(expected[step].loss);
    errors.loss.push_back(got[step].loss == expected[step].loss ? 0 : std::isnan(off) ? INFINITY : off);
    for (const auto part : {&StepNumbers::gradients, &StepNumbers::change}) {
      const auto& of = (expected[step].*part).sums;
      for (const auto& values : {squares_of((got[step].*part).sums - of), squares_of(of)})
        squares.insert(squares.end(), values.begin(), values.end());
    }
  }
  if (ranks != nullptr) {
    squares = comm::reduce_values(*ranks, squares, comm::ReduceOp::sum);
    errors.loss = comm::reduce_values(*ranks, errors.loss, comm::ReduceOp::max);
  }
  const auto blocks = got.empty() ? 0 : static_cast<std::size_t>(got.front().gradients.sums.size(0));
  auto from = squares.begin();
  for (std::size_t step = 0; step < got.size(); ++step)
    for (auto* to : {&errors.gradients, &errors.change}) {
      const std::vector<double> off(from, from + static_cast<std::ptrdiff_t>(blocks));
      from += static_cast<std::ptrdiff_t>(blocks);
      const std::vector<double> of(from, from + static_cast<std::ptrdiff_t>(blocks));
      from += static_cast<std::ptrdiff_t>(blocks);
      double all = 0;
      for (const double square : of) all += square;
      for (std::size_t block = 0; block < blocks; ++block)
        to->push_back(off[block] == 0 ? 0 : norm_of(off[block] / std::max(of[block], 1e-12 * all)));
    }
  return errors;
}

ErrorBound::ErrorBound(StepErrors of_default, double least)
    : of_default_(std::move(of_default)),
      floor_of_gradients_(std::max(least, median(of_default_.gradients))),
      floor_of_change_(std::max(kLeastOfChange, 2 * largest(of_default_.change))) {}

bool ErrorBound::is_usable() const { return !of_default_.loss.empty() && of_default_.largest() < kMostOfDefault; }

std::string ErrorBound::exceeded_by(const StepErrors& errors) const {
  const auto exceeds = [](double error, double by_default, double floor, double most) {
    return !(error <= std::min(std::max(2 * by_default, floor), most));
  };
  for (const auto& [what, got, by_default, floor, most] :
       {std::tuple{"its gradient", &errors.gradients, &of_default_.gradients, floor_of_gradients_, kMostOfGradients},
        std::tuple{"the change of its weights", &errors.change, &of_default_.change, floor_of_change_,
                   kMostOfChange}}) {
    const auto blocks = errors.loss.empty() ? 1 : got->size() / errors.loss.size();
    for (std::size_t i = 0; i < got->size(); ++i)
      if (exceeds((*got)[i], (*by_default)[i], floor, most))
        return fmt::format("block {}: the error of {} is {:.1e}, {:.1e} by the default", i % blocks, what, (*got)[i],
                           (*by_default)[i]);
  }
  for (std::size_t step = 0; step < errors.loss.size(); ++step)
    if (exceeds(errors.loss[step], of_default_.loss[step], floor_of_gradients_, kMostOfGradients))
      return fmt::format("the error of the loss is {:.1e}, {:.1e} by the default", errors.loss[step],
                         of_default_.loss[step]);
  return "";
}

}  // namespace trireme::tune
