#include "core/pipeline/verifier.h"

#include "core/base/error.h"
#include "core/pipeline/verifier_parts.h"

namespace trireme::pipeline {
namespace verifier {
namespace {

/// The progress of one stage: numbers of microbatches, since they are processed in order.
struct Progress {
  int forward = 0, input = 0, weight = 0;
};

/// Why `action` may not run now; "" when it may.
std::string out_of_order(const Action& action, const Progress& done, int microbatches) {
  const int due = action.op == Op::forward ? done.forward : makes_input_gradient(action.op) ? done.input : done.weight;
  if (due == microbatches) return "all microbatches have already been done";
  if (action.microbatch != due) return fmt::format("microbatch {} comes first", due);
  if (makes_input_gradient(action.op) && done.forward <= due) return "its forward has not run yet";
  if (makes_weight_gradient(action.op) && action.op != Op::backward && done.input <= due)
    return "its input gradient has not been computed yet";
  if (action.op == Op::backward && done.weight != due) return "earlier weight gradients have not been computed yet";
  return "";
}

void check_rank(const Schedule& schedule, int rank) {
  const auto& actions = schedule.actions[static_cast<std::size_t>(rank)];
  std::vector<Progress> stages(static_cast<std::size_t>(schedule.chunks));
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const auto& action = actions[i];
    if (action.chunk < 0 || action.chunk >= schedule.chunks || action.microbatch < 0 ||
        action.microbatch >= schedule.microbatches)
      fail("rank {}, action {}: there is no chunk {} with a microbatch {}", rank, i, action.chunk, action.microbatch);
    auto& done = stages[static_cast<std::size_t>(action.chunk)];
    if (const auto why = out_of_order(action, done, schedule.microbatches); !why.empty())
      fail("rank {}, action {}: {}: {}", rank, i, schedule.describe(rank, action), why);
    if (action.op == Op::forward) ++done.forward;
    if (makes_input_gradient(action.op)) ++done.input;
    if (makes_weight_gradient(action.op)) ++done.weight;
  }
  for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
    const auto& done = stages[static_cast<std::size_t>(chunk)];
    const auto left = [&](int had, const char* what) {
      if (had != schedule.microbatches)
        fail("rank {}, at its end: stage {} (chunk {}) has only {} of {} {}", rank, schedule.stage_of(rank, chunk),
             chunk, had, schedule.microbatches, what);
    };
    left(done.forward, "forwards");
    left(done.input, "input gradients");
    left(done.weight, "weight gradients");
  }
}

void check_layout(const Schedule& schedule) {
  if (schedule.ranks < 1 || schedule.chunks < 1 || schedule.microbatches < 1)
    fail("{} ranks, {} chunks and {} microbatches do not make a schedule", schedule.ranks, schedule.chunks,
         schedule.microbatches);
  if (schedule.actions.size() != static_cast<std::size_t>(schedule.ranks))
    fail("there are lists of actions for {} ranks, not for {}", schedule.actions.size(), schedule.ranks);
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const auto [rank, chunk] = schedule.location_of(stage);
    if (rank < 0 || rank >= schedule.ranks || chunk < 0 || chunk >= schedule.chunks ||
        schedule.stage_of(rank, chunk) != stage)
      fail("stage {} is mapped to chunk {} of rank {}, which is mapped to stage {}", stage, chunk, rank,
           schedule.stage_of(rank, chunk));
  }
}

}  // namespace

void check_schedule(const Schedule& schedule) {
  check_layout(schedule);
  for (int rank = 0; rank < schedule.ranks; ++rank) check_rank(schedule, rank);
}

}  // namespace verifier

Report verify(const Schedule& schedule) {
  try {
    verifier::check_schedule(schedule);  // only a complete schedule can be lowered
  } catch (const verifier::Violation& violation) {
    return {.violation = violation.text, .peak_live = {}, .peak_live_input = {}};
  }
  return verify(schedule, lower(schedule));
}

Report verify(const Schedule& schedule, const std::vector<Program>& programs) {
  Report out;
  try {
    verifier::check_schedule(schedule);
    verifier::check_programs(schedule, programs);
    verifier::check_messages(schedule, programs);
    verifier::run(schedule, programs);
  } catch (const verifier::Violation& violation) {
    out.violation = violation.text;
    return out;
  }
  for (const auto& program : programs)
    for (const auto& instruction : program) out.messages += is_send(instruction.kind) ? 1 : 0;
  out.peak_live = peak_live(schedule, LiveUntil::weight_gradient);
  out.peak_live_input = peak_live(schedule, LiveUntil::input_gradient);
  return out;
}

}  // namespace trireme::pipeline
