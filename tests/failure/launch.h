// Runs `trireme launch`, and waits for processes by their command lines.
#pragma once

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
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

inline void wait_for_file(const std::string& path) {
  for (int tries = 0; tries < 6000 && !std::filesystem::exists(path); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

/// Waits until a stopped process has got this signal, 3 seconds at most.
inline void wait_for_pending(pid_t process, int signal) {
  const auto pending = [&] {
    std::ifstream file("/proc/" + std::to_string(process) + "/status");
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("ShdPnd:") && (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1)) % 2 == 1)
        return true;
    return false;
  };
  for (int tries = 0; tries < 300 && !pending(); ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

/// A second request is one that comes a second after the first was noticed: asks until the process has ended.
inline void ask_again(pid_t process, int signal) {
  const auto runs = [&] {
    std::string state;
    std::getline(std::ifstream("/proc/" + std::to_string(process) + "/stat"), state);
    return !state.empty() && state.find(") Z ") == std::string::npos;
  };
  for (int tries = 0; tries < 20 && runs(); ++tries) {
    for (int i = 0; i < 130 && runs(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (runs()) kill(process, signal);
  }
}

using Lines = std::vector<std::string>;

}  // namespace trireme::tests
