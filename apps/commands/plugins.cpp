// trireme plugins
#include <fmt/format.h>

#include "apps/commands/commands.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/booster/plugin_loader.h"
#include "core/config/document.h"

namespace trireme::apps {

int run(const PluginsCommand&) {
  const auto files = list_plugins();
  if (files.empty()) {
    fmt::print("no plugins in {}\n", text::join(plugin_folders()));
    return 0;
  }
  const char* separator = "";
  for (const auto& file : files) {
    fmt::print("{}", separator);
    separator = "\n";
    try {
      const auto plugin = load_plugin(file.path);
      fmt::print("{}  Trireme {}  {}\n{}\n{}", plugin->name(), TRIREME_VERSION, file.path, plugin->summary(),
                 config::list_options(plugin->fields()));
    } catch (const ConfigError& error) {
      // One that does not fit this Trireme is part of the answer, not the end of it.
      fmt::print("{}  cannot be used: {}\n", file.name, error.what());
    }
  }
  return 0;
}

}  // namespace trireme::apps
