// Trireme's own launcher: starts ranks on this machine and on others, forwards output and signals, and ends all ranks
// when one fails.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "apps/front/hosts.h"
#include "apps/front/verdict.h"

namespace trireme::apps {

struct StartOptions {
  std::vector<std::string> program{};      ///< and its arguments
  std::vector<std::string> environment{};  ///< NAME=VALUE, of the ranks on this machine
  std::vector<HostShare> hosts{};
  std::vector<std::string> shell{};  ///< the remote shell's command, before the host's name
  bool tag_output = false;
  Ranks ranks = Ranks::of_any_program;
  std::chrono::seconds grace{15};  ///< that ranks have to end after a signal
  OnStop on_stop = OnStop::end;    ///< ask: only for ranks that are all on this machine
};

/// Runs the ranks until they end. If one fails, the others get SIGTERM, and SIGKILL if they still run after seconds.
/// The exit code is that of the first rank that failed (128 + n after signal n), or 128 + n if signal n to this process
/// ended the run; one message says why. @throws ConfigError when the program cannot be executed
RunEnd start_ranks(const StartOptions& options);

}  // namespace trireme::apps
