// Layouts as text: the argument --layouts of `trireme verify` and `trireme bench`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/config/table.h"

namespace trireme::apps {

/// "dp=2,tp=2,zero=1", "pp=4,schedule=zbv", "dp=1,device=cpu", "plugin=gemini,dp=3,plugin.gemini.max_prefetch=1".
struct Layout {
  std::string text;
  std::string plugin;                         ///< "": hybrid_parallel
  std::map<std::string, std::int64_t> sizes;  ///< of the axes that are given, by their keys
  std::int64_t zero = 0;
  std::string schedule, sp_mode;  ///< "": the plugin's default
  std::vector<std::string> set;   ///< other keys in the form of --set, including the device
  /// 1 for an axis that is not given.
  [[nodiscard]] std::int64_t size(const std::string& axis) const {
    const auto given = sizes.find(axis);
    return given == sizes.end() ? 1 : given->second;
  }
  /// The modes split_gather and ring run on the tensor-parallel ranks and add no ranks.
  [[nodiscard]] std::int64_t ranks() const {
    std::int64_t product = 1;
    for (const auto& [axis, size] : sizes)
      if (axis != "sp" || (sp_mode != "split_gather" && sp_mode != "ring")) product *= size;
    return product;
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

/// The threads of a rank in this layout; 0: its own choice. @throws ConfigError that names the layout
std::int64_t threads_of_layout(const std::string& path, const std::vector<std::string>& set, const Layout& layout);

}  // namespace trireme::apps
