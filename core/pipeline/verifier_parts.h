// The parts of the verifier, each of which proves one property listed in verifier.h. Private to the verifier.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "core/pipeline/program.h"

namespace trireme::pipeline::verifier {

/// Thrown by the parts and caught by verify(), which returns the text.
struct Violation {
  std::string text;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw Violation{fmt::format(text, std::forward<Args>(args)...)};
}

/// Complete and in order: checks each rank's list.
void check_schedule(const Schedule& schedule);
/// Lowered: checks each rank's program against its list. @pre check_schedule
void check_programs(const Schedule& schedule, const std::vector<Program>& programs);
/// Matched: checks the programs of each pair of ranks. @pre check_programs
void check_messages(const Schedule& schedule, const std::vector<Program>& programs);
/// Runs: executes the programs of all ranks. @pre check_messages
void run(const Schedule& schedule, const std::vector<Program>& programs);

}  // namespace trireme::pipeline::verifier
