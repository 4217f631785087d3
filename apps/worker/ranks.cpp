#include "apps/worker/ranks.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
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

// Long enough for rank 0 to have said the same and ended all, short enough for a person.
void let_lower_ranks_speak(int rank) {
  if (rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(3000 + 100 * std::min(rank, 50)));
}

// The first thread that meets an error speaks; the process ends with it.
int say(const Verdict& verdict, int rank) {
  static std::atomic_flag spoken;
  while (spoken.test_and_set()) std::this_thread::sleep_for(std::chrono::hours(1));
  let_lower_ranks_speak(rank);
  say_error(verdict.message, rank > 0 ? fmt::format("rank {}: ", rank) : "");
  return verdict.exit_code;
}

}  // namespace

int run_on_ranks(const std::function<comm::WorldOptions(const comm::LaunchInfo&)>& prepare,
                 const std::function<void(comm::World&)>& body) {
  comm::LaunchInfo info;
  std::unique_ptr<comm::World> world;
  try {
    info = comm::detect();
    world = comm::World::start(info, prepare(info));
  } catch (...) {
    return say(verdict_on(std::current_exception()), info.rank);
  }
  try {
    body(*world);
  } catch (...) {
    // The world is still whole here: its destructor would wait for ranks that never come.
    world->abort(say(verdict_on(std::current_exception()), info.rank));
  }
  return 0;
}

void end_with(const std::exception_ptr& error) {
  int rank = 0;
  try {
    rank = comm::detect().rank;
  } catch (const Error&) {
    // Then nobody else speaks either.
  }
  _exit(say(verdict_on(error), rank));
}

int terminal_columns() {
  if (const char* told = std::getenv("TRIREME_TERMINAL")) return std::max(0, std::atoi(told));
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || std::getenv("OMPI_COMM_WORLD_RANK") != nullptr) return 0;
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace trireme::apps
