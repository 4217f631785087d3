// RateFit and OverheadFit: the rates of a machine, from what single operators and whole steps took.
#pragma once

#include <cmath>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "core/plan/machine.h"
#include "core/plan/operator_watch.h"

namespace trireme::plan {

/// Operators by their kinds and dtypes: their work in a second, by its size.
class RateFit {
 public:
  /// Sizes at which rates are given, each `factor` times the one before.
  struct Axis {
    double least, factor;
    std::size_t count;
    [[nodiscard]] std::vector<double> sizes(double unit = 1) const {
      std::vector<double> out(count);
      for (std::size_t i = 0; i < count; ++i) out[i] = least / unit * std::pow(factor, i);
      return out;
    }
  };
  static constexpr Axis kProducts{8, 2, 9};     ///< Work::size() of products and attention
  static constexpr Axis kFlops{1 << 18, 4, 7};  ///< of convolutions
  static constexpr Axis kBytes{1 << 12, 4, 10};

  void add(const SeenOperator& seen);
  /// Of all that have been added, views too.
  [[nodiscard]] double operators() const { return operators_; }
  /// Of those that did work.
  [[nodiscard]] double seconds() const { return seconds_; }

  /// FLOPs or bytes in a second at the sizes of the kind's axis. Empty if there was none.
  [[nodiscard]] std::vector<double> rates(Kind kind, at::ScalarType dtype = at::kFloat) const;
  /// FLOP/s of attention, forward or backward, as a part of those of products of its size in its dtype; 1 if there was
  /// none.
  [[nodiscard]] double part_of_products(Kind kind, at::ScalarType dtype) const;
  /// Work in a second of convolutions, or of all operators without FLOPs, as a part of that in fp32; 1 if there were
  /// none.
  [[nodiscard]] double part_of_float(at::ScalarType dtype, bool convolutions) const;

 private:
  struct Sum {
    double work = 0, seconds = 0;
  };
  using Sums = std::map<double, Sum>;  ///< by size

  static const Axis& axis_of(Kind kind);
  static std::vector<double> fitted(const Axis& axis, const Sums& sums);
  template <class Takes, class Like>
  [[nodiscard]] double part(at::ScalarType dtype, at::ScalarType beside, const Takes& takes, const Like& like) const;

  double operators_ = 0, seconds_ = 0;
  std::map<std::pair<Kind, at::ScalarType>, Sums> sums_{};
};

/// What a step takes beside its operators: for each of them, and in proportion to their time (memory that is freed, and
/// views).
class OverheadFit {
 public:
  /// Of a network: mean seconds of an operator, and those of the step for each.
  void add(double inside, double all) { points_.push_back({inside, all}); }

  struct Line {
    double launch = 0, factor = 1;  ///< all = launch + factor * inside
  };
  /// By least squares of the relative errors. @pre there are two networks
  [[nodiscard]] Line line() const;

 private:
  std::vector<std::pair<double, double>> points_;
};

}  // namespace trireme::plan
