#include "core/booster/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <mutex>
#include <optional>

#include "core/base/error.h"
#include "core/base/verdict.h"
#include "core/booster/rank_process.h"
#include "core/booster/spawned_process.h"
#include "core/comm/flight/folder.h"
#include "core/launch/rank_variables.h"

namespace trireme {
namespace {

using SpawnClock = std::chrono::steady_clock;
constexpr int kMostRanks = 4096;
constexpr std::chrono::seconds kPatience{3};
/// A rank that loses its peer fails at once, perhaps before the peer's own error has arrived.
constexpr std::chrono::milliseconds kForTheCause{500};

/// "FILE:LINE:COLUMN#NUMBER": the number counts the calls at this place of the source.
std::string next_call(const std::source_location& where) {
  static std::mutex mutex;
  static std::map<std::string, int> calls;
  const std::scoped_lock lock(mutex);
  const auto place = fmt::format("{}:{}:{}", where.file_name(), where.line(), where.column());
  return fmt::format("{}#{}", place, ++calls[place]);
}

using RankProcesses = std::vector<std::unique_ptr<RankProcess>>;

/// Waits until a rank reports or ends, but not for long: an end alone wakes nobody if another process has the pipe.
void wait_for_news(const RankProcesses& ranks) {
  std::vector<pollfd> waiting;
  bool ending = false;
  for (const auto& rank : ranks) {
    if (rank->descriptor() >= 0) waiting.push_back({rank->descriptor(), POLLIN, 0});
    ending = ending || (rank->descriptor() < 0 && !rank->ended());
  }
  (void)poll(waiting.data(), waiting.size(), ending ? 1 : 100);
  for (const auto& rank : ranks) rank->look();
}

bool all_ended(const RankProcesses& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank->ended(); });
}

void stop(const RankProcesses& ranks) {
  for (const auto& rank : ranks) rank->send(SIGTERM);
  const auto until = SpawnClock::now() + kPatience;
  while (!all_ended(ranks) && SpawnClock::now() < until) wait_for_news(ranks);
  for (const auto& rank : ranks) rank->send(SIGKILL);
  while (!all_ended(ranks)) wait_for_news(ranks);
}

bool is_consequence(const RankFailure& failure) { return failure.code == static_cast<int>(ExitCode::communication); }

/// The failure to report, of those that are known: one that is no communication error if there is one, because losing
/// a peer is a consequence.
const RankFailure* cause_of(const RankProcesses& ranks) {
  const RankFailure* cause = nullptr;
  for (const auto& rank : ranks) {
    const auto& failure = rank->failure();
    if (failure && (cause == nullptr || (is_consequence(*cause) && !is_consequence(*failure)))) cause = &*failure;
  }
  return cause;
}

/// Waits until all ranks have ended, or one has failed. Returns the failure.
std::optional<RankFailure> wait_for_all(const RankProcesses& ranks) {
  std::optional<SpawnClock::time_point> since;
  while (!all_ended(ranks)) {
    wait_for_news(ranks);
    const auto* cause = cause_of(ranks);
    if (cause == nullptr) continue;
    if (!since) since = SpawnClock::now();
    if (!is_consequence(*cause) || SpawnClock::now() - *since > kForTheCause) return *cause;
  }
  const auto* cause = cause_of(ranks);
  return cause == nullptr ? std::nullopt : std::optional(*cause);
}

/// In a process that spawn() has started. Returns if `place` is an earlier call than the process's own.
void run_as_rank(SpawnedProcess& self, const std::string& place, const std::function<std::string()>& body) {
  TRIREME_REQUIRE(!self.reached(), "spawn() is called by a function that spawn() runs; call it from main()");
  if (place != self.call()) return;
  self.reach();
  std::string text;
  try {
    text = body();
  } catch (...) {
    const auto verdict = verdict_on(std::current_exception());
    self.end(ReportKind::failed, verdict.exit_code, verdict.message);
  }
  self.end(ReportKind::done, 0, text);
}

}  // namespace

namespace detail {

std::vector<std::string> spawn_ranks(int ranks, const std::function<std::string()>& body, bool on_cpu,
                                     const std::source_location& where) {
  TRIREME_REQUIRE(ranks >= 1 && ranks <= kMostRanks, "spawn({}): the number of ranks must be from 1 to {}", ranks,
                  kMostRanks);
  const auto place = next_call(where);
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  if (auto* self = SpawnedProcess::get()) {
    run_as_rank(*self, place, body);
    return texts;
  }
  if (const auto launched = detect_launch(); launched.size > 1)
    throw UsageError(
        fmt::format("spawn() is called in a rank of a launcher ({}), and each rank would start {} more; "
                    "start the program without a launcher, or do not call spawn() in it",
                    launched.text(), ranks));
  const comm::flight::ParentFolder records;  // of what the ranks do: nothing is left of it
  RankProcesses processes;
  {
    const StoreSocket store;
    const int inherited = fcntl(store.descriptor(), F_DUPFD_CLOEXEC, 10);
    const SpawnCall call{place, ranks, on_cpu, store.port(), inherited, records.path()};
    try {
      for (int rank = 0; rank < ranks; ++rank) processes.push_back(std::make_unique<RankProcess>(call, rank));
    } catch (...) {
      close(inherited);
      throw;
    }
    close(inherited);  // rank 0 has the socket
  }
  if (const auto failure = wait_for_all(processes)) {
    stop(processes);
    throw RankError(failure->rank, static_cast<ExitCode>(failure->code), failure->message, where);
  }
  for (std::size_t rank = 0; rank < texts.size(); ++rank) texts[rank] = processes[rank]->take_text();
  return texts;
}

bool only_cpu(const SpawnOptions& options) { return options.world.device == "cpu" || !host_has_gpu(); }

std::unique_ptr<comm::World> start_spawned_world(const SpawnOptions& options) {
  return comm::World::start(detect_launch(), options.world);
}

}  // namespace detail
}  // namespace trireme
