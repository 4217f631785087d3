#include "apps/launcher/temporary_folder.h"

#include <fmt/format.h>

#include <cstring>

#include "core/base/environment.h"
#include "core/base/error.h"

namespace trireme::apps {

std::string temporary_root() {
  for (const char* name : {"TMPDIR", "TEMP", "TMP"})
    if (const auto named = environment(name); !named.empty()) return named;
  return "/tmp";
}

TemporaryFolder::TemporaryFolder(const std::string& parent, const std::string& remedy) : folder_(parent, "trireme") {
  if (path().empty()) throw ConfigError(fmt::format("{}: {}; {}", parent, std::strerror(folder_.error()), remedy));
}

}  // namespace trireme::apps
