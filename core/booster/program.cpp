#include "core/booster/program.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "core/base/error.h"

namespace trireme {
namespace {

struct Failure {
  int code;
  std::string what;
};

Failure current_failure() {
  try {
    throw;
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  } catch (const std::exception& error) {
    return {static_cast<int>(ExitCode::internal), error.what()};
  } catch (...) {
    return {static_cast<int>(ExitCode::internal), "an unknown exception"};
  }
}

}  // namespace

int run_program(const char* name, const std::function<int(comm::World&)>& body, const comm::WorldOptions& options) {
  std::unique_ptr<comm::World> world;
  comm::LaunchInfo info;
  try {
    info = comm::detect();
    world = comm::World::start(info, options);
    return body(*world);
  } catch (...) {
    const auto failure = current_failure();
    // Rank 0 says what all meet, and ends them; this one is still here when the error is its own.
    if (info.rank > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
    const auto line =
        fmt::format("{}: {}{}\n", name, info.rank > 0 ? fmt::format("rank {}: ", info.rank) : "", failure.what);
    std::fwrite(line.data(), 1, line.size(), stderr);
    if (world) world->abort(failure.code);
    return failure.code;
  }
}

}  // namespace trireme
