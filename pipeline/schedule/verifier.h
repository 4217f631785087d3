// Verifier: proves that a schedule and its programs are right, or says what is wrong first.
//
//   whole      each stage does each microbatch's forward once, then its backward once (or input, then weight gradient)
//   in order   ... each of these in the order of the microbatches
//   lowered    a rank's program computes its schedule; each message is sent after what makes it, once, and received
//              before what needs it, once
//   matched    what rank a sends to rank b is what b receives from a, message by message, in one order
//   runs       all ranks together come to their end, when a message passes only once both ends are posted
//
// It trusts neither what makes schedules nor what lowers them, and is linear in what it reads. That it can be run is
// shown by running it: as no action ever undoes another's readiness, one order of running stands for all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/schedule/program.h"

namespace trireme::pipeline {

struct Report {
  std::string violation;       ///< empty: proven. Else which rank, which position in its list, which action, and why
  std::int64_t messages = 0;   ///< of all ranks
  std::vector<int> peak_live;  ///< of each rank, until the weight gradient; see schedule.h
  std::vector<int> peak_live_input;  ///< ... until the input gradient

  [[nodiscard]] bool ok() const { return violation.empty(); }
};

/// The schedule, lowered as executors get it.
Report verify(const Schedule& schedule);

/// ... with programs of the caller.
Report verify(const Schedule& schedule, const std::vector<Program>& programs);

/// @throws LogicError with the violation: for schedules of our own, before they are run.
void require_proven(const Schedule& schedule);

}  // namespace trireme::pipeline
