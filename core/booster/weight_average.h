// WeightAverage: an exponential moving average of the weights, which usually generalizes better than the weights
// themselves. Each rank averages the slices that it updates, so that the average is the same in every layout and costs
// no communication.
//
// After step n (from 1): average = d average + (1 - d) weights, with d = min(decay, (1 + n) / (10 + n)), so that early
// steps do not keep the initial weights; the rule of TensorFlow's ExponentialMovingAverage with num_updates. Floating-
// point buffers, such as running statistics, are averaged too; frozen weights, which do not change, are not. The
// average is at least float32: in 16 bits, the small part of each step would be rounded off.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/booster/boosted.h"

namespace trireme {

class WeightAverage {
 public:
  /// Starts as a copy of the weights. The model must outlive the object. @pre 0 < decay < 1
  WeightAverage(BoostedModel& model, double decay);
  /// Includes the weights after optimizer step `step`, which counts from 1. Does not synchronise the host.
  /// @throws UsageError while the average is in use
  void update(std::int64_t step);
  /// While the guard exists, the model computes with the average, and BoostedModel::state_dict() is the average; then
  /// the weights are as before. Collective, like BoostedModel::weights_changed(). A guard inside another one does
  /// nothing.
  [[nodiscard]] ScopeGuard use();
  [[nodiscard]] bool in_use() const { return !weights_.empty(); }
  /// The average, named and placed like the weights, and with it the model's frozen weights and other buffers. It can
  /// be written to.
  std::vector<shard::Slice> state();
  /// Starts again as a copy of the weights.
  void reset();
  [[nodiscard]] std::int64_t bytes() const;

 private:
  [[nodiscard]] bool is_averaged(const shard::Slice& slice) const;
  /// Those of the model's tensors that are averaged, in the order of average_.
  std::vector<shard::Slice> averaged_of(std::vector<shard::Slice> weights);
  void stop_use();
  BoostedModel& model_;
  double decay_;
  std::vector<shard::Slice> buffers_;  ///< of the model, which keeps them as long as it lives
  std::set<std::string> frozen_;       ///< names of parameters
  std::vector<at::Tensor> average_;
  std::vector<at::Tensor> weights_;  ///< the model's own, while the average is in use
};

}  // namespace trireme
