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

/// Trains on 1 rank and on 2, expects the same losses, and returns the last evaluation. `out`: what was printed.
inline nlohmann::json same_on_two_ranks(const SmallRun& run, std::size_t steps, const Arguments& arguments = {},
                                        std::string* out = nullptr) {
  std::vector<nlohmann::json> losses, evaluations;
  for (const int ranks : {1, 2}) {
    const auto result = run.train(ranks, arguments);
    EXPECT_EQ(result.code, 0) << result.err << result.out;
    if (result.code != 0) return {};
    if (out != nullptr) *out = result.out;
    losses.emplace_back(metrics_of(run.dir(), "step"));
    evaluations.emplace_back(metrics_of(run.dir(), "eval", "validation"));
  }
  EXPECT_EQ(losses[0].size(), steps);
  for (std::size_t i = 0; i < losses[0].size(); ++i) {
    const double expected = losses[0][i]["loss"];
    EXPECT_NEAR(losses[1][i]["loss"], expected, 1e-9 * expected) << i;
  }
  const double expected = evaluations[0].back()["loss"];
  EXPECT_NEAR(evaluations[1].back()["loss"], expected, 1e-9 * expected);
  return evaluations[1].back();
}

}  // namespace trireme::tests
