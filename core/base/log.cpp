#include "core/base/log.h"

#include <fmt/chrono.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"

namespace trireme {

LogFile::~LogFile() {
  if (file_ != nullptr) std::fclose(file_);
}

void LogFile::open(const std::string& path) {
  const std::lock_guard lock(mutex_);
  std::error_code failed;  // opening the file reports the cause, too
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
  file_ = std::fopen(path.c_str(), "ae");
  if (file_ == nullptr) throw CheckpointError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  std::fwrite(earlier_.data(), 1, earlier_.size(), file_);
  std::fflush(file_);
  earlier_.clear();
}

void LogFile::line(std::string_view text) {
  const auto now = std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const auto whole = fmt::format("{:%F %T} {}\n", now, text);
  const std::lock_guard lock(mutex_);
  if (file_ == nullptr) {
    earlier_ += whole;
    return;
  }
  std::fwrite(whole.data(), 1, whole.size(), file_);
  std::fflush(file_);
}

void Log::line(std::string_view prefix, std::string_view text, bool prints) const {
  if (file_) file_->line(fmt::format("{}{}", prefix, text));
  if (!prints) return;
  // One write per line, so that lines of several ranks do not mix.
  const auto whole = fmt::format("{}{}\n", prefix, text);
  std::fwrite(whole.data(), 1, whole.size(), out_);
  std::fflush(out_);
}

}  // namespace trireme
