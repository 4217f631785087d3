// What a training that the launcher has started again knows of it.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme::train {

/// The environment variable with the number of the restart and, after a space, its cause, on one line.
inline constexpr const char* kRestartVariable = "TRIREME_RESTART";
/// The environment variable with the folder in which an earlier start of the same command has trained.
inline constexpr const char* kTrainedInVariable = "TRIREME_TRAINED_IN";

struct Restart {
  std::int64_t number = 0;  ///< from 1; 0: not for a death, but with smaller microbatches
  std::string cause;
};

/// Unset in a process that was not started again.
inline std::optional<Restart> restart_of_this_process() {
  const char* set = std::getenv(kRestartVariable);
  if (set == nullptr) return std::nullopt;
  const std::string text(set);
  Restart out;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out.number);
  if (error != std::errc() || *end != ' ') return std::nullopt;
  out.cause = end + 1;
  return out;
}

/// Whether an earlier start of the same command has trained in this folder. It has then followed run.resume, and the
/// restart goes on with what that start has left.
inline bool was_trained_here(const std::string& run_dir) {
  const char* set = std::getenv(kTrainedInVariable);
  const auto path = [](const std::string& dir) {
    auto out = std::filesystem::absolute(dir).lexically_normal();
    return out.has_filename() ? out : out.parent_path();
  };
  return set != nullptr && *set != '\0' && path(set) == path(run_dir);
}

}  // namespace trireme::train
