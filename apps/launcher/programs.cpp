#include "apps/launcher/programs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "core/base/environment.h"
#include "core/base/error.h"

namespace trireme::apps {

std::string prefix() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw ConfigError("cannot read /proc/self/exe to find the worker program; is /proc mounted?");
  return program.parent_path().parent_path().string();
}

bool is_program(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

std::string on_path(const std::string& name) {
  auto rest = environment("PATH");
  while (!rest.empty()) {
    const auto colon = rest.find(':');
    const auto candidate = rest.substr(0, colon) + "/" + name;
    if (is_program(candidate)) return candidate;
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return "";
}

std::string find_program(const std::string& name) {
  if (name.find('/') == std::string::npos) return on_path(name);
  return is_program(name) ? name : "";
}

}  // namespace trireme::apps
