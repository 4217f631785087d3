// Switches: what the tuner can choose while a training runs. The choices of a switch compute the same step in different
// ways: other kernels, other numbers of threads. A choice that computes in another precision says so
// (changes_numbers), and is never chosen unless the user names it.
//
// A program adds switches of its own to the registry of TuneOptions, and an extension to Kinds::switches.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/registry.h"

namespace trireme {
struct Boosted;
}

namespace trireme::tune {

struct Choice {
  std::string name;              ///< "fused"
  std::function<void()> select;  ///< on every rank, between two steps; it takes no longer than a step
  bool changes_numbers = false;
};

/// The parts of a step: forward and backward passes with the reduction of gradients, and the optimizer's update.
enum class StepPart { passes, update };

struct Switch {
  std::string name;             ///< "norms"
  std::vector<Choice> choices;  ///< at least two; the first is what the step has without tuning
  StepPart part = StepPart::passes;
  double share = 1;  ///< of the part's time, about, that its choices change: the tuner begins with the most time
};

/// What a maker can look at.
struct SwitchInputs {
  Boosted* run = nullptr;  ///< null: a program's own step, which has only the switches of the whole process
  c10::Device device = c10::kCPU;
  int most_threads = 0;  ///< that a CPU rank's step may use; 0 or 1: their number is given
};

/// Makes the switch, or nothing where it has no effect: for this model, device or precision, or because the user has
/// set a key that decides it. The same on every rank.
using SwitchMaker = std::function<std::optional<Switch>(const SwitchInputs& inputs)>;
using Switches = Registry<SwitchMaker>;

/// Why a list of candidates cannot be used: it names a switch that is none of `known`. "": it can.
std::string problem_of_candidates(const std::vector<std::string>& candidates, const std::vector<std::string>& known);

/// attention, norms, pointwise (core/nn/layers/kernels.h); threads; onednn; cudnn_benchmark; cublas; float32_products.
Switches all_switches();

}  // namespace trireme::tune
