// Documents that show the examples' code and output: what they show.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/failure/refusal.h"

namespace trireme::tests {

/// A file of the source tree.
inline std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(TRIREME_SOURCE_DIR "/" + path).rdbuf();
  return text.str();
}

/// What stands between ```LANGUAGE and ```.
inline std::vector<std::string> fences(const std::string& document, const std::string& language) {
  std::vector<std::string> out;
  bool inside = false, wanted = false;
  for (const auto& line : lines_of(document)) {
    if (line.rfind("```", 0) == 0) {
      inside = !inside;
      wanted = inside && line == "```" + language;
      if (wanted) out.emplace_back();
    } else if (wanted) {
      out.back() += line + "\n";
    }
  }
  return out;
}

}  // namespace trireme::tests
