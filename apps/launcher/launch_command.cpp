#include "apps/launcher/launch_command.h"

#include <fmt/format.h>

#include <chrono>

#include "apps/launcher/programs.h"
#include "apps/launcher/restarts.h"
#include "apps/launcher/supervisor.h"
#include "core/base/environment.h"
#include "core/base/error.h"

namespace trireme::apps {

int launch(const LaunchCommand& command) {
  const auto& name = command.program.front();
  const auto path = find_program(name);
  if (path.empty())
    throw ConfigError(
        fmt::format("{}: no such program{}", name, name.find('/') == std::string::npos ? " on PATH" : ""));
  Supervisor supervisor;
  return with_restarts(supervisor, command.max_restarts, [&](const Attempt&) {
    return supervisor.run({.program = {.path = path, .words = command.program, .environment = whole_environment()},
                           .ranks = static_cast<int>(*command.ranks),
                           .tag_output = command.tag_output,
                           .grace = std::chrono::seconds(command.grace)});
  });
}

}  // namespace trireme::apps
