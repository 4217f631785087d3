#include "apps/front/launch_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "apps/front/launch.h"
#include "apps/front/local_ranks.h"
#include "apps/front/restarts.h"
#include "apps/front/start_ranks.h"
#include "core/base/environment.h"
#include "core/base/error.h"

namespace trireme::apps {
namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// The remote shell that the user names; empty if none.
std::vector<std::string> wanted_shell(const LaunchCommand& command) {
  return words_of(command.shell.empty() ? environment("TRIREME_RSH") : command.shell);
}

/// Without these options, ssh waits for minutes for a host that is down, and forever for one that goes down later.
std::vector<std::string> default_shell() {
  return {"ssh", "-x", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=10"};
}

}  // namespace

int launch(const LaunchCommand& command) {
  const auto hosts = !command.hostfile.empty() ? read_hostfile(command.hostfile)
                     : !command.hosts.empty()  ? parse_hosts(command.hosts)
                                               : std::vector<Host>();
  const auto shares = share_ranks(static_cast<int>(*command.ranks), hosts);
  const bool any_here = std::any_of(shares.begin(), shares.end(), [](const HostShare& share) { return share.here; });
  if (any_here && find_program(command.program.front()).empty())
    throw ConfigError(fmt::format("{}: no such program{}", command.program.front(),
                                  command.program.front().find('/') == std::string::npos ? " on PATH" : ""));
  auto shell = wanted_shell(command);
  if (!command.mpi && shell.empty()) shell = default_shell();
  return with_restarts(command.max_restarts, [&](const Attempt&) {
    if (command.mpi) return run_program_by_mpirun(command.program, *command.ranks, hosts, shell);
    return start_ranks({.program = command.program,
                        .environment = whole_environment(),
                        .hosts = shares,
                        .shell = shell,
                        .tag_output = command.tag_output,
                        .grace = std::chrono::seconds(command.grace)});
  });
}

}  // namespace trireme::apps
