// Counts a program's assertions, so that a test which has made none can fail: GoogleTest keeps nothing of an assertion
// that holds. Every macro with a condition begins with GTEST_AMBIGUOUS_ELSE_BLOCKER_.
#pragma once

#include <gtest/gtest.h>

#include <atomic>

namespace trireme::tests {

inline std::atomic<std::int64_t> assertions_made = 0;
inline int count_assertion() {
  ++assertions_made;
  return 0;
}

}  // namespace trireme::tests

#undef GTEST_AMBIGUOUS_ELSE_BLOCKER_
#define GTEST_AMBIGUOUS_ELSE_BLOCKER_          \
  switch (::trireme::tests::count_assertion()) \
  case 0:                                      \
  default:  // NOLINT
