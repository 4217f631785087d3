// What every failure must look like: one message, its exit code, no noise of runtimes below us.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/failure/process.h"

namespace trireme::tests {

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Exactly one line "trireme: ...", which holds `words`; the exit code; no abort dump; no hang.
inline void expect_refusal(const Outcome& outcome, int code, const std::string& words) {
  const bool failed_before = ::testing::Test::HasFailure();
  EXPECT_FALSE(outcome.hung);
  EXPECT_EQ(outcome.code, code);
  std::vector<std::string> messages;
  for (const auto& line : lines_of(outcome.err))
    if (line.rfind("trireme: ", 0) == 0) messages.push_back(line);
  EXPECT_EQ(messages.size(), 1U);
  if (!messages.empty()) {
    EXPECT_NE(messages[0].find(words), std::string::npos) << "wanted: " << words;
  }
  for (const auto* noise : {"terminate called", "MPI_ABORT", "mpirun has", "mpirun noticed", "mpirun detected",
                            "Exception raised from", "frame #", "-----", "Signal: ", "core dumped", "Primary job"})
    EXPECT_EQ((outcome.err + outcome.out).find(noise), std::string::npos) << noise;
  if (!failed_before && ::testing::Test::HasFailure()) {
    ADD_FAILURE() << "exit code " << outcome.code << "\n--- stdout\n" << outcome.out << "--- stderr\n" << outcome.err;
  }
}

/// The same, and the message is all that was said.
inline void expect_only_refusal(const Outcome& outcome, int code, const std::string& words) {
  expect_refusal(outcome, code, words);
  EXPECT_EQ(lines_of(outcome.err).size(), 1U) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

}  // namespace trireme::tests
