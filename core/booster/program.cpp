#include "core/booster/program.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "core/base/verdict.h"

namespace trireme {
int run_program(const char* name, const std::function<int(comm::World&)>& body, const comm::WorldOptions& options) {
  std::unique_ptr<comm::World> world;
  comm::LaunchInfo info;
  try {
    info = comm::detect();
    world = comm::World::start(info, options);
    return body(*world);
  } catch (...) {
    const auto failure = verdict_on(std::current_exception());
    // An error on all ranks is reported by rank 0, which then ends them. If this rank still runs after the wait, the
    // error is only its own.
    if (info.rank > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
    const auto line =
        fmt::format("{}: {}{}\n", name, info.rank > 0 ? fmt::format("rank {}: ", info.rank) : "", failure.message);
    std::fwrite(line.data(), 1, line.size(), stderr);
    if (world) world->abort(failure.exit_code);
    return failure.exit_code;
  }
}

}  // namespace trireme
