#include "core/plan/rate_fit.h"

#include <algorithm>

namespace trireme::plan {

const RateFit::Axis& RateFit::axis_of(Kind kind) {
  const bool multiplies = kind == Kind::product || kind == Kind::attention || kind == Kind::attention_backward;
  return multiplies ? kProducts : is_convolution(kind) ? kFlops : kBytes;
}

void RateFit::add(const SeenOperator& seen) {
  const auto& work = seen.work;
  ++operators_;
  if (work.bytes == 0) return;
  seconds_ += seen.seconds();
  const auto& axis = axis_of(work.kind);
  const bool multiplies = &axis != &kBytes;
  if (seen.seconds() <= 0 || (multiplies && work.flops == 0)) return;
  const double amount = multiplies ? work.flops : work.bytes;
  const double size = std::max(axis.least, &axis == &kProducts ? work.size() : amount);
  auto& sum = sums_[{work.kind, c10::isFloatingType(work.dtype) ? work.dtype : at::kFloat}][size];
  // What is smaller than the smallest tensor or convolution takes as long as that.
  sum.work += &axis == &kProducts ? amount : size;
  sum.seconds += seen.seconds();
}

std::vector<double> RateFit::rates(Kind kind, at::ScalarType dtype) const {
  const auto found = sums_.find({kind, dtype});
  return found == sums_.end() ? std::vector<double>() : fitted(axis_of(kind), found->second);
}

/// Work in a second of all operators for which `takes(kind)`, in this dtype, beside what operators of the kind
/// `like(kind)` and their sizes do in a second of the dtype `beside`.
template <class Takes, class Like>
double RateFit::part(at::ScalarType dtype, at::ScalarType beside, const Takes& takes, const Like& like) const {
  double own = 0, as_others = 0;
  for (const auto& [of, sums] : sums_) {
    if (of.second != dtype || !takes(of.first)) continue;
    const auto others = rates(like(of.first), beside);
    const auto sizes = axis_of(of.first).sizes();
    if (others.empty()) continue;
    for (const auto& [size, sum] : sums) {
      own += sum.seconds;
      as_others += sum.work / rate_at(sizes, others, size);
    }
  }
  return own > 0 ? as_others / own : 1;
}

double RateFit::part_of_products(Kind kind, at::ScalarType dtype) const {
  return part(
      dtype, dtype, [kind](Kind of) { return of == kind; }, [](Kind) { return Kind::product; });
}

double RateFit::part_of_float(at::ScalarType dtype, bool convolutions) const {
  const auto takes = [=](Kind of) {
    return convolutions ? is_convolution(of) : !is_convolution(of) && &axis_of(of) != &kProducts;
  };
  return part(dtype, at::kFloat, takes, [](Kind of) { return of; });
}

/// The rates between which rate_at() comes closest to what was seen: least squares of the logarithms, weighted with
/// the seconds, and of the steps from one rate to the next. Sizes that nobody had get the rates of their neighbours.
std::vector<double> RateFit::fitted(const Axis& axis, const Sums& sums) {
  const auto count = axis.count;
  constexpr double kSmooth = 1e-3, kSmoothUnseen = 1e-7;  // as a part of the seconds between two sizes, and of all
  std::vector<double> diagonal(count), off_diagonal(count), rhs(count);  // of the normal equations
  std::vector<double> between(count);
  double all = 0;
  for (const auto& [size, sum] : sums) {
    const double at = std::clamp(std::log(size / axis.least) / std::log(axis.factor), 0.0, count - 1.0);
    const auto low = std::min(static_cast<std::size_t>(at), count - 2);
    const double high_part = at - static_cast<double>(low), low_part = 1 - high_part;
    const double rate = std::log(sum.work / sum.seconds);
    diagonal[low] += sum.seconds * low_part * low_part;
    diagonal[low + 1] += sum.seconds * high_part * high_part;
    off_diagonal[low] += sum.seconds * low_part * high_part;
    rhs[low] += sum.seconds * low_part * rate;
    rhs[low + 1] += sum.seconds * high_part * rate;
    between[low] += sum.seconds;
    all += sum.seconds;
  }
  for (std::size_t i = 0; i + 1 < count; ++i) {
    const double smooth = kSmooth * between[i] + kSmoothUnseen * all;
    diagonal[i] += smooth;
    diagonal[i + 1] += smooth;
    off_diagonal[i] -= smooth;
  }
  for (std::size_t i = 1; i < count; ++i) {
    const double part = off_diagonal[i - 1] / diagonal[i - 1];
    diagonal[i] -= part * off_diagonal[i - 1];
    rhs[i] -= part * rhs[i - 1];
  }
  std::vector<double> out(count);
  for (std::size_t i = count; i-- > 0;)
    out[i] = (rhs[i] - (i + 1 < count ? off_diagonal[i] * out[i + 1] : 0)) / diagonal[i];
  for (auto& rate : out) rate = std::exp(rate);
  return out;
}

OverheadFit::Line OverheadFit::line() const {
  double ones = 0, x = 0, xx = 0, y = 0, xy = 0;  // weighted sums
  for (const auto& [inside, all] : points_) {
    const double weight = 1 / (all * all);
    ones += weight;
    x += weight * inside;
    xx += weight * inside * inside;
    y += weight * all;
    xy += weight * inside * all;
  }
  // On a busy machine the points may say anything.
  const double slope = (ones * xy - x * y) / (ones * xx - x * x);
  const double factor = std::isfinite(slope) ? std::clamp(slope, 1.0, 2.0) : 1;
  return {std::max(1e-7, (y - factor * x) / ones), factor};
}

}  // namespace trireme::plan
