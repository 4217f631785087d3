#include "core/launch/cause.h"

#include <fmt/format.h>

#include <csignal>
#include <cstring>

#include "core/base/error.h"

namespace trireme::ranks {
namespace {

std::optional<Cause> failure_of(const RankState& state) {
  const auto& failure = state.report.failure;
  const bool own = failure && failure->process == state.process;
  const bool counts = own || (failure && state.ended() && state.signal() == 0);
  if (state.ended() ? state.code() == 0 : !counts) return std::nullopt;
  const int code = state.ended() && (state.signal() == 0 || !counts) ? state.code() : failure->code;
  if (code == static_cast<int>(ExitCode::communication)) return Cause{state.rank, End::lost_peer, code};
  const auto end = counts ? End::reported : state.signal() != 0 ? End::killed : End::exited;
  return Cause{state.rank, end, code, end == End::killed || (counts && failure->of_all)};
}

std::string less_memory(Ranks ranks, int size) {
  const bool ours = ranks == Ranks::of_trireme;
  if (size == 1) return ours ? "a smaller train.micro_batch, or train.recompute = true" : "smaller batches";
  return ours ? "fewer ranks, a smaller train.micro_batch, or train.recompute = true"
              : "fewer ranks, or smaller batches";
}

}  // namespace

std::optional<Cause> cause_of(const std::vector<RankState>& ranks) {
  std::optional<Cause> cause;
  for (const auto& state : ranks) {
    const auto failure = failure_of(state);
    if (failure && (!cause || failure->end < cause->end)) cause = failure;
  }
  return cause;
}

std::optional<Cause> reported_cause_of(const std::vector<RankState>& ranks) {
  for (const auto& state : ranks)
    if (const auto failure = failure_of(state); failure && failure->end == End::reported) return failure;
  return std::nullopt;
}

bool is_settled(const RankState& rank) { return rank.ended() || failure_of(rank); }

std::string message_of(int rank, const Failure& failure) {
  if (rank == 0 || failure.of_all) return failure.message;
  return fmt::format("rank {}: {}", rank, failure.message);
}

std::string ended_by_signal(const std::string& who, int signal, Ranks ranks, int size) {
  switch (signal) {
    case SIGKILL:
      return fmt::format("{} was killed by signal 9, most often because the machine ran out of memory: use {}", who,
                         less_memory(ranks, size));
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGABRT:
    case SIGTRAP:
    case SIGSYS:
      return fmt::format("{} crashed with signal {} ({}){}", who, signal, strsignal(signal),
                         ranks == Ranks::of_trireme
                             ? ". This is a bug in Trireme or in a library that it uses; please report it with the "
                               "output of `trireme env`"
                             : "");
    default:
      return fmt::format("{} was ended by signal {} ({})", who, signal, strsignal(signal));
  }
}

}  // namespace trireme::ranks
