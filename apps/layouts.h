// Layouts as words: what `trireme verify --layouts` takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace trireme::apps {

/// "dp=2,tp=2,zero=1", "plugin=gemini,dp=3,plugin.gemini.max_prefetch=1".
struct Layout {
  std::string text;
  std::string plugin;  ///< "": hybrid_parallel
  std::int64_t dp = 1, tp = 1, zero = 0;
  std::vector<std::string> set;  ///< other keys, as --set takes them
  [[nodiscard]] std::int64_t ranks() const { return dp * tp; }
};

/// @throws ConfigError
Layout parse_layout(const std::string& text);
/// Layouts, separated by semicolons. @throws ConfigError that says which is wrong and how.
std::vector<Layout> parse_layouts(const std::string& text);

/// The file, with `layout` in place of its [parallel] and [plugin.*], and without keys of a precision of its own.
/// @throws ConfigError
config::RunConfig load_with_layout(const std::string& path, const std::vector<std::string>& set, const Layout& layout);

}  // namespace trireme::apps
