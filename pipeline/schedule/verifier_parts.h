// The verifier's parts, each a proof of one thing; verifier.h says which. Not for use elsewhere.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "pipeline/schedule/program.h"

namespace trireme::pipeline::verifier {

/// Thrown by the parts, caught by verify(): what is wrong is an answer there, not an error.
struct Violation {
  std::string text;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw Violation{fmt::format(text, std::forward<Args>(args)...)};
}

/// Whole and in order: each rank's list by itself.
void check_schedule(const Schedule& schedule);
/// Lowered: each rank's program against its list. @pre check_schedule
void check_programs(const Schedule& schedule, const std::vector<Program>& programs);
/// Matched: the programs of each two ranks. @pre check_programs
void check_messages(const Schedule& schedule, const std::vector<Program>& programs);
/// Runs: the programs of all ranks. @pre check_messages
void run(const Schedule& schedule, const std::vector<Program>& programs);

}  // namespace trireme::pipeline::verifier
