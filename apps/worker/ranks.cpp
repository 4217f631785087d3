#include "apps/worker/ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/base/error.h"

namespace trireme::apps {
namespace {

// Long enough for rank 0 to have said the same and ended all, short enough for a person. Ranks that share cores start
// the later, the more of them there are.
void let_lower_ranks_speak(const comm::LaunchInfo& info) {
  if (info.rank == 0) return;
  const auto cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto wait = std::chrono::milliseconds(3000 + 100 * std::min(info.rank, 50));
  std::this_thread::sleep_for(wait * std::max(1, info.local_size / cores));
}

// The first thread that meets an error speaks; the process ends with it.
int say(const Verdict& verdict, const comm::LaunchInfo& info) {
  static std::atomic_flag spoken;
  while (spoken.test_and_set()) std::this_thread::sleep_for(std::chrono::hours(1));
  let_lower_ranks_speak(info);
  say_error(message_of(verdict), info.rank > 0 ? fmt::format("rank {}: ", info.rank) : "");
  return verdict.exit_code;
}

}  // namespace

std::string message_of(const Verdict& verdict) {
  if (!verdict.unexpected) return verdict.message;
  return verdict.message + ". This should not happen; please report it with the output of `trireme env`";
}

int run_on_ranks(const std::function<comm::WorldOptions(const comm::LaunchInfo&)>& prepare,
                 const std::function<void(comm::World&)>& body) {
  comm::LaunchInfo info;
  std::unique_ptr<comm::World> world;
  try {
    info = comm::detect();
    world = comm::World::start(info, prepare(info));
  } catch (...) {
    return say(verdict_on(std::current_exception()), info);
  }
  try {
    body(*world);
  } catch (...) {
    // The world is still whole here: its destructor would wait for ranks that never come.
    world->abort(say(verdict_on(std::current_exception()), info));
  }
  return 0;
}

void end_with(const std::exception_ptr& error) {
  comm::LaunchInfo info;
  try {
    info = comm::detect();
  } catch (const Error&) {
    // Then nobody else speaks either.
  }
  _exit(say(verdict_on(error), info));
}

}  // namespace trireme::apps
