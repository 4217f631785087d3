#include "core/booster/program.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <thread>

#include "core/base/error.h"
#include "core/base/verdict.h"
#include "core/comm/flight/lost_peer.h"

namespace trireme {
namespace {

/// Reports the exception that is being handled. Returns its exit code.
int report_failure(const char* name, const LaunchInfo& info) {
  const auto failure = verdict_on(std::current_exception());
  // What the program has printed comes first, and is not lost when the process ends at once.
  std::cout.flush();
  std::fflush(nullptr);
  if (comm::flight::report_lost_peer(name, failure.exit_code, failure.message, info)) return failure.exit_code;
  // An error on all ranks is reported by rank 0, which then ends them. If this rank still runs after the wait, the
  // error is only its own.
  if (info.rank > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
  const auto line =
      fmt::format("{}: {}{}\n", name, info.rank > 0 ? fmt::format("rank {}: ", info.rank) : "", failure.message);
  std::fwrite(line.data(), 1, line.size(), stderr);
  return failure.exit_code;
}

}  // namespace

int run_program(const char* name, const std::function<int(comm::World&)>& body, const comm::WorldOptions& options) {
  std::unique_ptr<comm::World> world;
  LaunchInfo info;
  try {
    info = detect_launch();
    world = comm::World::start(info, options);
    return body(*world);
  } catch (...) {
    const int code = report_failure(name, info);
    if (world) world->abort(code);
    return code;
  }
}

int run_program(const char* name, const std::function<int()>& body) {
  LaunchInfo info;
  try {
    info = detect_launch();
    return body();
  } catch (...) {
    return report_failure(name, info);
  }
}

int integer_argument(const std::string& name, const std::string& text, int least, int most) {
  int value = 0;
  const auto* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && rest == end && value >= least && value <= most) return value;
  const bool bounded = most < std::numeric_limits<int>::max();
  throw ConfigError(fmt::format("{}: \"{}\" is not a whole number {}", name, text,
                                bounded ? fmt::format("from {} to {}", least, most) : fmt::format(">= {}", least)));
}

}  // namespace trireme
