#include "core/setup/extension.h"

#include "core/base/error.h"
#include "core/booster/plugin_loader.h"

namespace trireme::train {

void load_extensions(const std::vector<std::string>& paths, Kinds& kinds) {
  for (const auto& path : paths) {
    void* extend = load_function(path, "run.extensions", "an extension", "trireme_extend");
    try {
      reinterpret_cast<void (*)(Kinds*)>(extend)(&kinds);
    } catch (const std::exception& error) {
      throw ConfigError(fmt::format("run.extensions: {}: {}", path, error.what()));
    }
  }
}

}  // namespace trireme::train
