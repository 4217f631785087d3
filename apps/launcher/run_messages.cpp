#include "apps/launcher/run_messages.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <utility>

#include "apps/report.h"
#include "core/base/repeated_signal.h"
#include "core/comm/flight/reader.h"
#include "core/comm/flight/report.h"

namespace trireme::apps {

namespace flight = comm::flight;
using ranks::RankState;

constexpr int kForReader = 1000;  // milliseconds
/// How many bytes wait for a reader before they are dropped, because the ranks must end.
constexpr std::size_t kMostKept = 1 << 22;

/// Ends a line with ^C or a progress bar.
static const char* line_end() { return isatty(STDERR_FILENO) != 0 ? "\n" : ""; }

void RunMessages::add_output(int rank, int stream, std::string_view text) {
  if (stream == STDERR_FILENO && !text.empty()) complained_.insert(rank);
  if (unwritten() < kMostKept || text.empty()) outputs_[stream == STDERR_FILENO ? 1 : 0].add(rank, text);
}

void RunMessages::say_stopping() {
  if (!std::exchange(said_stopping_, true)) outputs_[1].say(line_end() + std::string(kStoppingLine));
}

void RunMessages::say_error_of(const RankState& rank) {
  const auto& failure = *rank.report.failure;
  if (told_.insert(rank.rank).second)
    outputs_[1].say(error_line(ranks::message_of(rank.rank, failure), failure.program));
}

void RunMessages::say_errors_of_shells(const std::vector<RankState>& states) {
  for (const auto& state : states) {
    const auto& failure = state.report.failure;
    if (!failure || failure->process == state.process || state.ended()) continue;
    const auto since = below_shell_since_.emplace(state.rank, Clock::now()).first->second;
    if (Clock::now() - since >= ranks::kSettleTime) say_error_of(state);
  }
}

CauseMessage RunMessages::say_cause(const ranks::Cause& cause, const std::vector<RankState>& states) {
  if (const auto text = table(cause, states); !text.empty()) {
    const auto line = text.find('\n');
    const auto said = text.substr(0, line);
    outputs_[1].say(error_line(said) + text.substr(line + 1));
    return {said, true};
  }
  const auto& state = states[static_cast<std::size_t>(cause.rank)];
  const auto said = text_of(state);
  const auto& failure = state.report.failure;
  outputs_[1].say(error_line(said, failure ? failure->program : "trireme"));
  return {said};
}

/// The table on a rank that was killed, or on ranks that have lost each other, below a line that says why. "" when
/// there is none, because the ranks are no several ones of a world.
std::string RunMessages::table(const ranks::Cause& cause, const std::vector<RankState>& states) const {
  const bool killed = cause.end == ranks::End::killed;
  if (options_.ranks == 1 || (!killed && cause.end != ranks::End::lost_peer)) return "";
  const auto ranks = flight::read_ranks(folder_.path());
  if (ranks.empty() || (!killed && !flight::is_failure(ranks))) return "";
  flight::ReportOptions report{.world_size = options_.ranks, .all_on_this_host = true};
  for (const auto& state : states) {
    if (!killed || state.signal() == 0) continue;
    const auto name = fmt::format("rank {}", state.rank);
    report.ended[state.rank] =
        ranks::ended_by_signal(name, state.signal(), options_.kind, options_.ranks).substr(name.size() + 1);
  }
  return flight::report(ranks, report);
}

std::string RunMessages::text_of(const RankState& rank) const {
  if (rank.report.failure && told_.count(rank.rank) == 0) return ranks::message_of(rank.rank, *rank.report.failure);
  const bool is_alone = options_.kind == ranks::Ranks::of_trireme && options_.ranks == 1;
  const auto name = is_alone ? "the training" : fmt::format("rank {}", rank.rank);
  if (rank.signal() != 0) return ranks::ended_by_signal(name, rank.signal(), options_.kind, options_.ranks);
  const bool silent = complained_.count(rank.rank) + told_.count(rank.rank) == 0;
  return fmt::format("{} ended with exit code {}{}", name, rank.code(), silent ? " and no message" : "");
}

int report_stop(int signal, const std::string& meaning) {
  pollfd stream{STDERR_FILENO, POLLOUT, 0};
  if (poll(&stream, 1, kForReader) > 0) {
    std::fputs(line_end(), stderr);
    say_error(fmt::format("stopped by signal {} ({}){}", signal, strsignal(signal), meaning));
  }
  return 128 + signal;
}

}  // namespace trireme::apps
