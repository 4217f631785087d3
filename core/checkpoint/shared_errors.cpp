#include "core/checkpoint/shared_errors.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/comm/host_values.h"

namespace trireme::checkpoint {

std::string problem_of(const std::function<void()>& action, const char* what) {
  try {
    action();
    return "";
  } catch (const CheckpointError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return fmt::format("{}: {}", what, error.what());
  }
}

std::string first_problem(const comm::World& world, const std::string& mine) {
  for (auto& text : comm::all_gather_text(world.group(), mine))
    if (!text.empty()) return text;
  return "";
}

std::string problem_of_first_rank(const comm::World& world, const std::string& mine) {
  return comm::broadcast_text(world.group(), mine);
}

void on_first_rank(const comm::World& world, const std::function<void()>& action) {
  const auto problem = world.rank() == 0 ? problem_of(action, "the files of a run cannot be handled") : "";
  if (const auto found = problem_of_first_rank(world, problem); !found.empty()) throw CheckpointError(found);
}

void on_every_rank(const comm::World& world, const std::function<void()>& action, const char* what) {
  if (const auto found = first_problem(world, problem_of(action, what)); !found.empty()) throw CheckpointError(found);
}

}  // namespace trireme::checkpoint
