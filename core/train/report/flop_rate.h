// The model's FLOP/s, and the MFU (model FLOPs utilization; Chowdhery et al., "PaLM", 2022): the fraction of the
// devices' peak.
//
// What counts: two FLOPs for each multiplication in the matrix products, convolutions and attentions of the forward
// pass (core/nn/autograd/flops.h; causal attention in full), and twice as many for the backward pass. Recomputation,
// other operators and the optimizer do not count, and frozen layers count like others.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/comm/world.h"
#include "core/data/batch.h"
#include "core/nn/block.h"

namespace trireme::train {

/// FLOPs of a forward pass of one sample of this batch's shapes, counted on the meta device, where matrix products
/// compute nothing. @pre The parameters of `model` are on the meta device.
/// @throws what the model throws without values
double sample_flops(nn::Model& model, const nn::NamedTensors& batch);

/// The dense peak of a GPU in TFLOP/s, by its CUDA name and the run's precision, from NVIDIA's data sheets. Unset for
/// other GPUs, and for a precision that they do not compute.
std::optional<double> peak_tflops(const std::string& gpu, const std::string& precision);

/// The peak of all ranks' devices in FLOP/s. `tflops`: of a device; unset: rank 0 looks its GPU up, and others do not
/// know it.
std::optional<double> peak_of_all(std::optional<double> tflops, const std::string& precision, const comm::World& world);

/// "3.2 TFLOP/s", "3.2 TFLOP/s (MFU 41.0 %)"
std::string rate_text(double flops_per_s, const std::optional<double>& mfu);

/// Counts the FLOPs of a run's steps, on one rank for all of them.
class FlopRate {
 public:
  using MakeModel = std::function<std::shared_ptr<nn::Model>()>;
  explicit FlopRate(MakeModel make) : make_(std::move(make)) {}

  /// FLOPs of forward and backward of this step over all ranks; unset when they cannot be counted. One sample of the
  /// first microbatch is counted, on a separate model on the meta device. The FLOPs of a step scale with the number of
  /// elements of its first input, padding included: this is exact when all samples have one shape, and an estimate for
  /// attention otherwise. The other data-parallel ranks are assumed to pad as this one does.
  std::optional<double> of_step(const data::StepBatch& batch);
  /// Adds a finished step to the mean. The first step is warm-up and is left out as soon as there is a second one.
  void add(double flops, double seconds);
  /// Adds the time in which the host waited for steps that were launched.
  void add_wait(double seconds) { seconds_ += steps_ > 1 ? seconds : 0; }
  /// Mean FLOP/s of the training steps; unset when they cannot be counted.
  [[nodiscard]] std::optional<double> mean() const;
  /// Why FLOPs cannot be counted, in one line; "" if they can, or if there was no microbatch yet.
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  void count(const nn::NamedTensors& inputs);

  MakeModel make_;
  bool is_counted_ = false;
  std::string problem_;
  std::string input_;                  ///< the name of the model's first input
  std::optional<double> per_element_;  ///< of that input, forward and backward
  double elements_a_sample_ = 0;       ///< of the last step with samples on this rank
  double flops_ = 0, seconds_ = 0;
  int steps_ = 0;
};

}  // namespace trireme::train
