// trireme plugins
#include <fmt/format.h>
#include <unistd.h>

#include "apps/commands/commands.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/booster/plugin_loader.h"
#include "core/config/document.h"

namespace trireme::apps {
namespace {

std::string description(const std::string& name_or_path, const std::string& path) {
  const auto plugin = load_plugin(name_or_path);
  return fmt::format(
      "{}{}", fitted(fmt::format("{}  Trireme {}  {}\n{}\n", plugin->name(), TRIREME_VERSION, path, plugin->summary())),
      config::list_options(plugin->fields(), terminal_columns(STDOUT_FILENO)));
}

}  // namespace

int run(const PluginsCommand& command) {
  const char* separator = "";
  const auto print = [&separator](const std::string& text) {
    put(separator + text);
    separator = "\n";
  };
  for (const auto& wanted : command.plugins) print(description(wanted, plugin_path(wanted)));
  if (!command.plugins.empty()) return 0;
  const auto files = list_plugins();
  if (files.empty()) print(fitted(fmt::format("no plugins in {}\n", text::join(plugin_folders()))));
  for (const auto& file : files) {
    try {
      print(description(file.path, file.path));
    } catch (const ConfigError& error) {
      // A plugin that does not match this Trireme is listed, not an error.
      print(fitted(fmt::format("{}  cannot be used: {}\n", file.name, error.what())));
    }
  }
  return 0;
}

}  // namespace trireme::apps
