#include "apps/front/temporary_folder.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/base/environment.h"
#include "core/base/error.h"

namespace trireme::apps {

std::string temporary_root() {
  for (const char* name : {"TMPDIR", "TEMP", "TMP"})
    if (const auto named = environment(name); !named.empty()) return named;
  return "/tmp";
}

TemporaryFolder::TemporaryFolder(const std::string& parent, const std::string& remedy)
    : path_(parent + "/trireme-XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr)
    throw ConfigError(fmt::format("{}: {}; {}", parent, std::strerror(errno), remedy));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace trireme::apps
