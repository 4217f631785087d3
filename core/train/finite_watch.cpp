#include "core/train/finite_watch.h"

#include <fmt/format.h>

#include <cmath>

#include "core/base/error.h"

namespace trireme::train {
namespace {

constexpr const char* kRemedy = "Lower optimizer.lr, lengthen the warm-up, or set train.max_norm";

/// Removes the sign that a NaN may have.
double printable(double v) { return std::isnan(v) ? std::abs(v) : v; }

}  // namespace

void FiniteWatch::step(std::int64_t number, double loss, double grad_norm, bool skipped, bool has_loss_scale) {
  bad_losses_ = std::isfinite(loss) ? 0 : bad_losses_ + 1;
  skips_ = skipped ? skips_ + 1 : 0;
  const bool well =
      has_loss_scale ? bad_losses_ < kBadLosses && skips_ < kSkips : std::isfinite(loss) && std::isfinite(grad_norm);
  if (well) return;
  throw NonFiniteError(fmt::format("step {}: the loss is {} and the gradient norm {}; the step was not applied{}. {}{}",
                                   number, printable(loss), printable(grad_norm),
                                   has_loss_scale ? fmt::format(", nor were {} before it", skips_ - 1) : "", kRemedy,
                                   has_loss_scale ? ", or train in bf16 or fp32" : ""));
}

void FiniteWatch::validation(std::int64_t epoch, double loss) {
  if (!std::isfinite(loss))
    throw NonFiniteError(fmt::format("epoch {}: the validation loss is {}. {}", epoch, printable(loss), kRemedy));
}

}  // namespace trireme::train
