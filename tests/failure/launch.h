// Runs `trireme launch`, and waits for processes by their command lines.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/failure/refusal.h"

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

/// Whether no process has `text` in its command line, now or within a second.
inline bool all_gone(const std::string& text) {
  for (int tries = 0; tries < 100; ++tries) {
    if (processes_with(text).empty()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

/// Waits until this many processes have `text` in their command line.
inline void wait_for_processes(const std::string& text, std::size_t count) {
  for (int tries = 0; tries < 1000 && processes_with(text).size() < count; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

using Lines = std::vector<std::string>;

}  // namespace trireme::tests
