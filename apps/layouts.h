// Layouts as words: what `trireme verify --layouts` takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/config/run_config.h"

namespace trireme::apps {

/// "dp=2,tp=2,zero=1", "pp=4,schedule=zbv", "dp=1,device=cpu", "plugin=gemini,dp=3,plugin.gemini.max_prefetch=1".
struct Layout {
  std::string text;
  std::string plugin;  ///< "": hybrid_parallel
  std::int64_t dp = 1, pp = 1, sp = 1, tp = 1, zero = 0;
  std::string schedule, sp_mode;  ///< "": the plugin's own choice
  std::vector<std::string> set;   ///< other keys, as --set takes them; device among them
  /// The modes split_gather and ring work among the tensor-parallel ranks, and have none of their own.
  [[nodiscard]] std::int64_t ranks() const {
    return dp * pp * tp * (sp_mode == "split_gather" || sp_mode == "ring" ? 1 : sp);
  }
};

/// Throws `error` again, met with this layout of the file and `set`, as one of --layouts: its words stand there, and
/// not behind a --set. What the user has said by --set stays as it is.
[[noreturn]] void blame(const Layout& layout, const std::vector<std::string>& set, const ConfigError& error);

/// @throws ConfigError
Layout parse_layout(const std::string& text);
/// Layouts, separated by semicolons. @throws ConfigError that says which is wrong and how.
std::vector<Layout> parse_layouts(const std::string& text);

/// The file, with `layout` in place of its [parallel] and [plugin.*], and without keys of a precision of its own.
/// @throws ConfigError
config::RunConfig load_with_layout(const std::string& path, const std::vector<std::string>& set, const Layout& layout);

}  // namespace trireme::apps
