#include "core/pipeline/schedule.h"

#include <fmt/format.h>

#include <array>

namespace trireme::pipeline {

const char* name(Op op) {
  static constexpr std::array kNames{"forward", "backward", "backward_input", "backward_weight"};
  return kNames.at(static_cast<std::size_t>(op));
}

int Schedule::stage_of(int rank, int chunk) const {
  const bool returns = layout == Layout::v && chunk % 2 == 1;
  return chunk * ranks + (returns ? ranks - 1 - rank : rank);
}

StageLocation Schedule::location_of(int stage) const {
  const int chunk = stage / ranks, along = stage % ranks;
  const bool returns = layout == Layout::v && chunk % 2 == 1;
  return {returns ? ranks - 1 - along : along, chunk};
}

std::size_t Schedule::item(Op op, int stage, int microbatch) const {
  const auto pair = static_cast<std::size_t>(stage) * static_cast<std::size_t>(microbatches);
  return 2 * (pair + static_cast<std::size_t>(microbatch)) + (op == Op::forward ? 0 : 1);
}

std::string Schedule::describe(int rank, const Action& action) const {
  return fmt::format("{} of stage {} (chunk {}), microbatch {}", pipeline::name(action.op),
                     stage_of(rank, action.chunk), action.chunk, action.microbatch);
}

int source_stage(const Schedule& schedule, int rank, const Action& action) {
  const int stage = schedule.stage_of(rank, action.chunk);
  if (action.op == Op::forward) return stage - 1;
  if (makes_input_gradient(action.op) && stage + 1 < schedule.stages()) return stage + 1;
  return -1;
}

int target_stage(const Schedule& schedule, int rank, const Action& action) {
  const int stage = schedule.stage_of(rank, action.chunk);
  if (action.op == Op::forward) return stage + 1 < schedule.stages() ? stage + 1 : -1;
  return makes_input_gradient(action.op) ? stage - 1 : -1;
}

}  // namespace trireme::pipeline
