// Layouts as text: the argument of `trireme verify --layouts`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/config/table.h"

namespace trireme::apps {

/// "dp=2,tp=2,zero=1", "pp=4,schedule=zbv", "dp=1,device=cpu", "plugin=gemini,dp=3,plugin.gemini.max_prefetch=1".
struct Layout {
  std::string text;
  std::string plugin;  ///< "": hybrid_parallel
  std::int64_t dp = 1, pp = 1, sp = 1, tp = 1, zero = 0;
  std::string schedule, sp_mode;  ///< "": the plugin's default
  std::vector<std::string> set;   ///< other keys in the form of --set, including the device
  /// The modes split_gather and ring run on the tensor-parallel ranks and add no ranks.
  [[nodiscard]] std::int64_t ranks() const {
    return dp * pp * tp * (sp_mode == "split_gather" || sp_mode == "ring" ? 1 : sp);
  }
};

/// Rethrows `error`, which was caused by this layout together with the file and `set`, as an error of --layouts. An
/// error in one of the user's --set assignments is rethrown unchanged.
[[noreturn]] void blame(const Layout& layout, const std::vector<std::string>& set, const ConfigError& error);

/// @throws ConfigError
Layout parse_layout(const std::string& text);
/// Parses layouts, separated by semicolons. @throws ConfigError that names the wrong one and its error.
std::vector<Layout> parse_layouts(const std::string& text);

/// Reads the file with `layout` in place of its [parallel] and [plugin.*]. @throws ConfigError
config::Table table_with_layout(const std::string& path, const std::vector<std::string>& set, const Layout& layout);

}  // namespace trireme::apps
