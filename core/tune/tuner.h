// The tuner: finds the fastest choices of some switches for a step (coordinate descent), with the same numbers.
//
//   for each switch, that of the largest part of the step's time first: for each of its choices:
//     select it;  numbers within the bound, and no more memory than by default?  no: rejected
//     warm up;  then A B A B ..., with A the best choices up to now, until their times part
//     faster: it is the best now
//   A B A B of the default and what was chosen: the gain.
//
// Every rank decides from the same numbers: TunedStep returns what all ranks agree on.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/tune/step_numbers.h"
#include "core/tune/switches.h"
#include "core/tune/tuning.h"

namespace trireme::tune {

/// A step that is run again and again, from where it is. What it returns is the same on every rank.
class TunedStep {
 public:
  virtual ~TunedStep() = default;
  /// Seconds of the slowest rank; with device work, until it is done.
  struct Measured {
    double passes = 0, update = 0;
    std::int64_t peak = 0;  ///< bytes of tensors on the rank that needs most; 0: not counted
    [[nodiscard]] double seconds() const { return passes + update; }
  };
  /// Runs a whole step.
  virtual Measured run() = 0;
  struct Checked {
    bool same_bits = false;  ///< as the first call's
    StepErrors errors{};     ///< to the float64 reference; empty: there is none
    double seconds = 0;
  };
  /// The numbers of the step from the state at the start, with dropout and learning rates of two steps.
  virtual Checked check() = 0;
  /// Whether the user wants the run to stop.
  virtual bool stops() { return false; }
};

struct TunerOptions {
  double budget_s = std::numeric_limits<double>::infinity();
  /// The same as the time of so many steps without tuning.
  double budget_steps = std::numeric_limits<double>::infinity();
  double used_s = 0;  ///< of the budget, before tune()
  /// Switches ("threads") and choices ("threads=2") to try; empty: all that keep the numbers.
  std::vector<std::string> candidates{};
  double least_error = 0;  ///< relative errors up to this are rounding, see ErrorBound
  int warm = 3;            ///< steps of a candidate that are not measured
  int measured = 7;        ///< pairs of steps, at most; three times as many while it is not clear which one is faster
};

/// The choices of these switches that TunerOptions::candidates names. @throws ConfigError for a choice that its switch
/// does not have
std::vector<Switch> wanted(std::vector<Switch> switches, const std::vector<std::string>& candidates);

/// Leaves the chosen choices selected. Collective. @pre the first choice of each switch is selected
Tuning tune(TunedStep& step, const std::vector<Switch>& switches, const TunerOptions& options);

/// Selects these choices by their names ("threads=2"). Returns those that no switch has; then none is selected.
std::vector<std::string> select(const std::vector<Switch>& switches, const std::vector<std::string>& chosen);

}  // namespace trireme::tune
