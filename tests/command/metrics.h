// Reads a run's files as a user's script would.
#pragma once

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/command/small_run.h"

namespace trireme::tests {

inline std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string weights_of(const SmallRun& run) { return content_of(run.dir() + "/model/model.safetensors"); }

inline nlohmann::json json_of(const std::string& path) { return nlohmann::json::parse(content_of(path)); }

/// The lines of metrics.jsonl of one kind and split, in order; by default the lines that have no split.
inline std::vector<nlohmann::json> metrics_of(const std::string& run, const std::string& kind,
                                              const std::string& split = "") {
  std::vector<nlohmann::json> out;
  for (const auto& text : lines_of(content_of(run + "/metrics.jsonl"))) {
    auto line = nlohmann::json::parse(text);
    if (line.at("kind") == kind && line.value("split", "") == split) out.push_back(std::move(line));
  }
  return out;
}

}  // namespace trireme::tests
