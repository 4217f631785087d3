// Checks that a failure prints one message, has its exit code, and shows no output of underlying runtimes.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/command/process.h"

namespace trireme::tests {

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// How often a text has a part.
inline int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// Expects exactly one line "trireme: ...", which contains `expected`, the exit code, no abort dump and no hang.
inline void expect_refusal(const ProcessResult& result, int code, const std::string& expected) {
  const bool failed_before = ::testing::Test::HasFailure();
  EXPECT_FALSE(result.hung);
  EXPECT_EQ(result.code, code);
  std::vector<std::string> messages;
  for (const auto& line : lines_of(result.err))
    if (line.rfind("trireme: ", 0) == 0) messages.push_back(line);
  EXPECT_EQ(messages.size(), 1U);
  if (!messages.empty()) {
    EXPECT_NE(messages[0].find(expected), std::string::npos) << "expected: " << expected;
  }
  for (const auto* noise : {"terminate called", "MPI_ABORT", "mpirun has", "mpirun noticed", "mpirun detected",
                            "Exception raised from", "frame #", "-----", "Signal: ", "core dumped", "Primary job"})
    EXPECT_EQ((result.err + result.out).find(noise), std::string::npos) << noise;
  if (!failed_before && ::testing::Test::HasFailure()) {
    ADD_FAILURE() << "exit code " << result.code << "\n--- stdout\n" << result.out << "--- stderr\n" << result.err;
  }
}

/// Expects a refusal whose message is the only output.
inline void expect_only_refusal(const ProcessResult& result, int code, const std::string& expected) {
  expect_refusal(result, code, expected);
  EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  EXPECT_EQ(result.out, "");
}

}  // namespace trireme::tests
