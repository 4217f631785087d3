// Runs `trireme launch`, and waits for processes by their command lines.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/command/refusal.h"

namespace trireme::tests {

inline ProcessResult launch(std::vector<std::string> arguments, const ProcessOptions& options = {}) {
  arguments.insert(arguments.begin(), {TRIREME_COMMAND, "launch"});
  return run_process(arguments, options);
}

inline ProcessResult launch_script(int ranks, const std::string& script, const ProcessOptions& options = {}) {
  return launch({"-n", std::to_string(ranks), "sh", "-c", script}, options);
}

inline std::vector<std::string> sorted_lines(const std::string& text) {
  auto lines = lines_of(text);
  std::sort(lines.begin(), lines.end());
  return lines;
}

/// The argument of a sleep, which marks the processes of this test program: another checkout's tests may run too.
inline std::string own_time(const std::string& seconds) { return seconds + std::to_string(getpid()) + "s"; }

/// Whether no process has `text` in its command line, now or soon.
inline bool all_gone(const std::string& text) {
  return wait_until([&] { return processes_with(text).empty(); });
}

/// Waits until this many processes have `text` in their command line.
inline void wait_for_processes(const std::string& text, std::size_t count) {
  (void)wait_until([&] { return processes_with(text).size() >= count; });
}

inline void wait_for_file(const std::string& path) {
  (void)wait_until([&] { return std::filesystem::exists(path); });
}

/// Stops a process, and returns when it is stopped: of two signals that are on their way, the kernel delivers the one
/// with the lower number first, such as SIGUSR1 before SIGSTOP.
inline void stop_process(pid_t process) {
  kill(process, SIGSTOP);
  EXPECT_TRUE(wait_until([&] { return state_of(process) == 'T'; })) << process << " is not stopped";
}

/// Waits until a stopped process has got this signal.
inline void wait_for_pending(pid_t process, int signal) {
  EXPECT_TRUE(wait_until([&] { return has_signal(process, "ShdPnd", signal); })) << process << " got no " << signal;
}

/// A second request is one that comes a second after the first was noticed: asks until the process has ended.
inline void ask_again(pid_t process, int signal) {
  for (int tries = 0; tries < 20 && !wait_until([&] { return !runs(process); }, 1.3); ++tries) kill(process, signal);
}

using Lines = std::vector<std::string>;

}  // namespace trireme::tests
