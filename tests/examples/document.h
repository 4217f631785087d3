// Documents that show the examples' code and output: what they show.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace trireme::tests {

inline std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

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
