// Log: messages for users besides the progress output. One object per process, passed by reference.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string_view>
#include <utility>

namespace trireme {

/// Writes lines to a stream (standard error by default). note() and warn() print only on rank 0, so that information
/// that every rank has appears once; warn_here() prints on any rank, with its number.
class Log {
 public:
  explicit Log(int rank = 0, std::FILE* out = stderr) : rank_(rank), out_(out) {}

  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) const {
    if (rank_ == 0) line("", fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) const {
    if (rank_ == 0) line("warning: ", fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warn_here(fmt::format_string<Args...> format, Args&&... args) const {
    line(fmt::format("warning: rank {}: ", rank_), fmt::format(format, std::forward<Args>(args)...));
  }
  [[nodiscard]] int rank() const { return rank_; }

 private:
  void line(std::string_view prefix, std::string_view text) const {
    // One write per line, so that lines of several ranks do not mix.
    const auto whole = fmt::format("{}{}\n", prefix, text);
    std::fwrite(whole.data(), 1, whole.size(), out_);
    std::fflush(out_);
  }
  int rank_;
  std::FILE* out_;
};

}  // namespace trireme
