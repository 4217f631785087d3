// Log: messages for users besides the progress output. One object per process, passed by reference or copied.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace trireme {

/// A file of one rank's own lines, each with the time of day. Lines from before open() are kept and written then,
/// because a run's folder exists only after its data and model are checked. Thread-safe.
class LogFile {
 public:
  LogFile() = default;
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
  /// Appends to the file, and makes its folder. @throws CheckpointError
  void open(const std::string& path);
  void line(std::string_view text);

 private:
  std::mutex mutex_;
  std::FILE* file_ = nullptr;
  std::string earlier_;
};

/// Writes lines to a stream (standard error by default). note() and warn() print only on rank 0, so that information
/// that every rank has appears once; warn_on_rank() prints on any rank, with its number. `file`: if given, it receives
/// the lines of this rank, printed or not.
class Log {
 public:
  explicit Log(int rank = 0, std::FILE* out = stderr, std::shared_ptr<LogFile> file = nullptr)
      : rank_(rank), out_(out), file_(std::move(file)) {}

  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) const {
    if (rank_ == 0 || file_) line("", fmt::format(format, std::forward<Args>(args)...), rank_ == 0);
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) const {
    if (rank_ == 0 || file_) line("warning: ", fmt::format(format, std::forward<Args>(args)...), rank_ == 0);
  }
  template <class... Args>
  void warn_on_rank(fmt::format_string<Args...> format, Args&&... args) const {
    line(fmt::format("warning: rank {}: ", rank_), fmt::format(format, std::forward<Args>(args)...), true);
  }
  [[nodiscard]] int rank() const { return rank_; }
  /// Null when the rank has none.
  [[nodiscard]] const std::shared_ptr<LogFile>& file() const { return file_; }

 private:
  void line(std::string_view prefix, std::string_view text, bool prints) const;
  int rank_;
  std::FILE* out_;
  std::shared_ptr<LogFile> file_;
};

}  // namespace trireme
