// optimize(): measures ways to run a training step in the loop's first moments and selects the fastest that computes
// the same. Afterwards weights, optimizer, loss scale, buffers and random state are what they were, so that a training
// is bitwise the same as one that is run with the chosen switches from its start.
//
//   auto run = booster.boost(make_inputs());
//   run.loader->start_epoch(0);
//   const auto batch = run.loader->next();
//   const auto twin = [&] { return tune::make_twin(world, make_plugin(), options, make_inputs()); };
//   const auto tuning = tune::optimize(run, *batch, {.twin = twin});
//
// Memory: while it measures, copies of weights and optimizer state; while it computes the reference, also a float64
// model with its optimizer and activations.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/booster/booster.h"
#include "core/tune/tuner.h"

namespace trireme::tune {

/// The same training in float64: the reference for the numbers of every candidate.
struct Twin {
  std::unique_ptr<Booster> booster{};  ///< it must outlive `run`
  Boosted run{};
};

/// Boosts these inputs with the options, but in fp64 and with LibTorch's plain kernels. `plugin`: another object than
/// that of the run, configured alike. Collective. @throws ConfigError, such as for a plugin whose own options name
/// another precision
Twin make_twin(comm::World& world, std::unique_ptr<Plugin> plugin, BoostOptions options, BoostInputs inputs);

struct OptimizeOptions {
  double budget_s = 60;
  double budget_steps = std::numeric_limits<double>::infinity();  ///< the same as the time of so many steps
  std::vector<std::string> candidates{};                          ///< see TunerOptions
  Switches switches = all_switches();
  /// Makes the twin of the run, such as by make_twin(). Collective.
  /// Null, or if it throws a ConfigError: there is no reference, and only choices with the default's bits are taken.
  std::function<Twin()> twin{};
  int most_threads = 0;             ///< that a rank's step may use, such as usable_cores(); 0: their number is given
  std::function<bool()> stops{};    ///< whether this rank was asked to stop; null: never
  std::function<double()> clock{};  ///< seconds from any begin; null: the steady clock
  /// For a program's own step: the ranks that train together, which then choose alike. Null: this process is alone.
  const comm::Group* ranks = nullptr;
};

/// The switches that a boosted run has, with the candidates that the options name. @throws ConfigError
std::vector<Switch> switches_of(Boosted& run, const OptimizeOptions& options);

/// Of a boosted run before a step of this batch, which the loop then trains as usual. Collective.
/// @throws ConfigError for an unknown candidate
Tuning optimize(Boosted& run, const data::StepBatch& batch, const OptimizeOptions& options = {});

/// Of a program's own step, before or without boost(): `loss` runs the module's forward pass on the inputs and returns
/// a scalar. Forward and backward passes are measured, with the switches of the whole process. The reference is the
/// same module in float64, in which it is for a moment. Afterwards parameters and buffers are what they were, and
/// gradients undefined.
Tuning optimize(torch::nn::Module& module, const std::vector<at::Tensor>& inputs,
                const std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>& loss,
                const OptimizeOptions& options = {});

}  // namespace trireme::tune
