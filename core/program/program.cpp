#include "core/program/program.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/verdict.h"
#include "core/comm/flight/failure.h"

namespace trireme {
namespace {

/// Reports the exception that is being handled. Returns its exit code.
int report(const char* name, const LaunchInfo& info) {
  const auto verdict = verdict_on(std::current_exception());
  const ranks::Failure failure{.code = verdict.exit_code, .message = verdict.message, .program = name};
  // What the program has printed comes first, and is not lost when the process ends at once.
  std::cout.flush();
  std::fflush(nullptr);
  comm::flight::report_failure(failure, info, [&](const std::string& message) {
    const auto line = fmt::format("{}: {}\n", name, message);
    std::fwrite(line.data(), 1, line.size(), stderr);
  });
  return failure.code;
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
    const int code = report(name, info);
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
    return report(name, info);
  }
}

int integer_argument(const std::string& name, const std::string& text, int least, int most) {
  if (const auto value = text::integer(text); value >= least && value <= most) return static_cast<int>(*value);
  const bool bounded = most < std::numeric_limits<int>::max();
  throw ConfigError(fmt::format("{}: \"{}\" is not a whole number {}", name, text,
                                bounded ? fmt::format("from {} to {}", least, most) : fmt::format(">= {}", least)));
}

}  // namespace trireme
