#include "core/program/spawn.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "core/comm/flight/folder.h"
#include "core/launch/cause.h"
#include "core/launch/local_ranks.h"
#include "core/launch/process.h"
#include "core/launch/rank_variables.h"
#include "core/program/spawned_process.h"

namespace trireme {
namespace {

constexpr int kMostRanks = 4096;
constexpr std::chrono::seconds kPatience{3};

/// "FILE:LINE:COLUMN#NUMBER": the number counts the calls at this place of the source.
std::string next_call(const std::source_location& where) {
  static std::mutex mutex;
  static std::map<std::string, int> calls;
  const std::scoped_lock lock(mutex);
  const auto place = fmt::format("{}:{}:{}", where.file_name(), where.line(), where.column());
  return fmt::format("{}#{}", place, ++calls[place]);
}

/// The ranks of one call.
class Spawned {
 public:
  Spawned(const std::string& place, int ranks, bool on_cpu) : place_(place), ranks_(ranks) {
    const StoreSocket store;
    std::vector<ranks::Program> programs;
    for (int rank = 0; rank < ranks; ++rank)
      programs.push_back(
          detail::program_of_rank({place, rank, ranks, store.port(), store.descriptor(), records_.path()}, on_cpu));
    ranks::RankSettings settings{.store_socket = store.descriptor(), .of_spawn = true};
    sigemptyset(&settings.blocked);
    processes_.emplace(loop_, std::move(programs), settings);
  }

  /// Waits until all ranks have ended, or one has failed. Returns the failure.
  std::optional<ranks::Cause> wait() {
    std::optional<Clock::time_point> failing_since;
    while (processes_->busy()) {
      wait_for_news();
      if (!cause()) continue;
      processes_->collect();  // what explains it has happened before
      if (!failing_since) failing_since = Clock::now();
      const bool waits =
          cause()->end == ranks::End::lost_peer && !std::all_of(states().begin(), states().end(), ranks::is_settled);
      if (!waits || Clock::now() - *failing_since > ranks::kSettleTime) break;
    }
    return cause();
  }

  void stop() {
    processes_->end(SIGTERM, kPatience);
    while (processes_->busy()) {
      wait_for_news();
      processes_->check_deadline();
    }
  }

  /// What is said about the rank that has failed.
  [[nodiscard]] std::string text_of(const ranks::Cause& cause) const {
    const auto& state = states()[static_cast<std::size_t>(cause.rank)];
    const auto name = fmt::format("rank {}", state.rank);
    const auto& failure = state.report.failure;
    if (failure && state.report.reached) return fmt::format("{}: {}", name, failure->message);
    const auto end = failure ? fmt::format("{}: {},", name, failure->message)
                     : state.signal() != 0
                         ? ranks::ended_by_signal(name, state.signal(), ranks::Ranks::of_any_program, ranks_)
                         : fmt::format("{} ended with exit code {}", name, state.code());
    if (!state.report.reached)
      return fmt::format(
          "{} before it came to the call of spawn() at {}: a rank runs the program again from main() on, which must "
          "come to the same call",
          end, place_.substr(0, place_.rfind('#')));
    return state.signal() != 0 ? end : end + " before the function of spawn() returned";
  }
  [[nodiscard]] const std::vector<ranks::RankState>& states() const { return processes_->states(); }

 private:
  using Clock = std::chrono::steady_clock;

  /// Not for long: an end alone wakes nobody if another process has the pipe.
  void wait_for_news() {
    loop_.run_once(std::any_of(states().begin(), states().end(), ends) ? 1 : 100);
    processes_->collect();
  }
  /// Whether the rank has reported its end, but still runs.
  static bool ends(const ranks::RankState& state) {
    return !state.ended() && (state.report.result || state.report.failure);
  }
  /// Of a rank that the program has waited for itself only the report is known.
  [[nodiscard]] std::optional<ranks::Cause> cause() const {
    if (auto found = ranks::cause_of(states())) return found;
    for (const auto& state : states())
      if (state.ended() && !state.report.result)
        return ranks::Cause{state.rank, ranks::End::exited,
                            state.report.reached ? 1 : static_cast<int>(ExitCode::config)};
    return std::nullopt;
  }

  std::string place_;
  int ranks_;
  comm::flight::ParentFolder records_;  // of what the ranks do: nothing is left of it
  ranks::EventLoop loop_;
  std::optional<ranks::LocalRanks> processes_;
};

}  // namespace

namespace detail {

std::vector<std::string> spawn_ranks(int ranks, const std::function<std::string()>& body, bool on_cpu,
                                     const std::source_location& where) {
  TRIREME_REQUIRE(ranks >= 1 && ranks <= kMostRanks, "spawn({}): the number of ranks must be from 1 to {}", ranks,
                  kMostRanks);
  const auto place = next_call(where);
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  if (run_as_rank(place, body)) return texts;
  if (const auto launched = detect_launch(); launched.size > 1)
    throw UsageError(
        fmt::format("spawn() is called in a rank of a launcher ({}), and each rank would start {} more; "
                    "start the program without a launcher, or do not call spawn() in it",
                    launched.text(), ranks));
  Spawned processes(place, ranks, on_cpu);
  if (const auto cause = processes.wait()) {
    const auto message = processes.text_of(*cause);
    processes.stop();
    throw RankError(cause->rank, static_cast<ExitCode>(cause->code), message, where);
  }
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    texts[rank] = processes.states()[rank].report.result.value_or("");
  return texts;
}

bool only_cpu(const SpawnOptions& options) { return options.world.device == "cpu" || !host_has_gpu(); }

std::unique_ptr<comm::World> start_spawned_world(const SpawnOptions& options) {
  return comm::World::start(detect_launch(), options.world);
}

}  // namespace detail
}  // namespace trireme
