#include "apps/config_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"

namespace trireme::apps {
namespace {

constexpr const char* kCopy = "TRIREME_CONFIG";  ///< path of the copied text; only the launcher sets it

}  // namespace

bool is_resolved(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path file(path);
  std::error_code none;
  return file.filename() == "config.toml" && (fs::exists(file.parent_path() / "metrics.jsonl", none) ||
                                              fs::exists(file.parent_path() / "manifest.json", none));
}

bool can_be_read_again(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode) || S_ISDIR(status.st_mode);
}

void forget_config() { unsetenv(kCopy); }

void keep_config(const std::string& path) {
  if (can_be_read_again(path)) return;
  const auto text = config::read_text(path);
  // The file stays open until this process or the worker that replaces it ends, and the ranks end before that.
  const int copy = memfd_create("config", 0);
  if (copy < 0 || write(copy, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw ConfigError(
        fmt::format("{}: cannot be copied for the ranks: {}; name a file on disk", path, std::strerror(errno)));
  setenv(kCopy, fmt::format("/proc/{}/fd/{}", getpid(), copy).c_str(), 1);
}

config::Table read_config(const std::string& path) {
  const char* copy = std::getenv(kCopy);
  return copy == nullptr ? config::parse_file(path) : config::parse_text(config::read_text(copy), path);
}

config::Table read_config(const std::string& path, const std::vector<std::string>& set) {
  auto root = read_config(path);
  for (const auto& assignment : set) config::apply_override(root, assignment);
  return root;
}

std::int64_t threads_of(const config::Table& root) { return root.value<std::int64_t>("run", "threads").value_or(0); }

bool retries_on_oom(const config::Table& root) { return root.value<std::string>("train", "on_oom") == "retry"; }

}  // namespace trireme::apps
