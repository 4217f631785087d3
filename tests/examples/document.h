// Reads the blocks of code and of output in the Markdown documents of the examples.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/command/refusal.h"

namespace trireme::tests {

/// The content of a file of the source tree.
inline std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(TRIREME_SOURCE_DIR "/" + path).rdbuf();
  return text.str();
}

/// The contents of each block between ```LANGUAGE and ```.
inline std::vector<std::string> code_blocks(const std::string& document, const std::string& language) {
  std::vector<std::string> out;
  bool in_block = false, wanted = false;
  for (const auto& line : lines_of(document)) {
    if (line.rfind("```", 0) == 0) {
      in_block = !in_block;
      wanted = in_block && line == "```" + language;
      if (wanted) out.emplace_back();
    } else if (wanted) {
      out.back() += line + "\n";
    }
  }
  return out;
}

}  // namespace trireme::tests
