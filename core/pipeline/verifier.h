// Verifier: proves that a schedule and its programs are correct, or reports the first violation.
//
//   complete   each stage runs each microbatch's forward once, then its backward once (or input, then weight gradient)
//   in order   ... each of these in the order of the microbatches
//   lowered    a rank's program computes its schedule; each message is sent once, after the action that produces it,
//              and received once, before the action that needs it
//   matched    the messages that rank a sends to rank b are those that b receives from a, in the same order
//   runs       all ranks complete, even if a message passes only once both ends are posted
//
// It trusts neither the functions that make schedules nor the lowering, and is linear in the size of its input. It
// proves that a schedule can run by running it once: since no action makes another one unready, one order of execution
// is representative of all.
#pragma once

#include <string>
#include <vector>

#include "core/pipeline/schedule.h"

namespace trireme::pipeline {

/// Verifies the schedule with the programs that it is lowered to. Returns "" for a proven one, else the first
/// violation: the rank, the position in its list, the action and the reason.
std::string verify(const Schedule& schedule);

/// The same with the caller's programs.
std::string verify(const Schedule& schedule, const std::vector<Program>& programs);

}  // namespace trireme::pipeline
