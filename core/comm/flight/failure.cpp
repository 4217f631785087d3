#include "core/comm/flight/failure.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/comm/flight/folder.h"
#include "core/comm/flight/reader.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/report.h"
#include "core/comm/flight/stopping.h"
#include "core/launch/parent.h"

namespace trireme::comm::flight {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kForAnother{2000};
/// Ranks whose time is over at the same time leave their marks, so that the lowest of them prints.
constexpr milliseconds kSettle{300};
/// A host without rank 0 lets that rank print and end all others.
constexpr milliseconds kForFirstHost{3000};

/// Whether this rank is the lowest one on its host that has noticed.
bool is_lowest(const std::vector<RankView>& ranks, int rank) {
  const auto first = std::find_if(ranks.begin(), ranks.end(), [](const RankView& view) {
    return view.record.end == EndKind::lost && view.process != ProcessState::gone;
  });
  return first == ranks.end() || first->record.rank >= rank;
}

/// Returns false when no rank of this host prints the table in this time.
bool wait_until_printed(milliseconds patience) {
  auto* shared = shared_control();
  const auto until = std::chrono::steady_clock::now() + patience;
  while (shared == nullptr || std::atomic_ref(shared->printed).load() == 0) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return true;
}

/// Prints the table if no other rank of this host has claimed it.
bool print_table(const std::string& program, const LaunchInfo& info) {
  const auto where = folder();
  auto* shared = shared_control();
  std::int32_t nobody = 0;
  if (shared == nullptr || !std::atomic_ref(shared->claimed).compare_exchange_strong(nobody, info.rank + 1))
    return wait_until_printed(kForAnother);
  std::atomic_ref(shared->dying).store(1);
  const bool one_host = info.local_size == info.size;
  const auto text = program + ": " + report(read_ranks(where), {.world_size = info.size, .all_on_this_host = one_host});
  std::fflush(stdout);
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::atomic_ref(shared->printed).store(1);
  remove_folder(where);
  return true;
}

bool report_lost_peer(const std::string& program, const LaunchInfo& info) {
  const auto where = folder();
  if (where.empty()) return false;
  std::this_thread::sleep_for(kSettle);
  const bool one_host = info.local_size == info.size;
  if (!one_host && info.rank != info.local_rank && wait_until_printed(kForFirstHost)) return true;
  if (!is_lowest(read_ranks(where), info.rank) && wait_until_printed(kForAnother)) return true;
  return print_table(program, info);
}

/// Long enough for rank 0 to say the same error and to end all ranks, but not too long for the user. When ranks share
/// cores, more of them means a later start.
milliseconds time_for_rank_0(const LaunchInfo& info) {
  return milliseconds(3000 + 100 * std::min(info.rank, 50)) * std::max(1, info.local_size / usable_cores());
}

/// For a rank that its launcher ends because another one has died. The lowest rank of this host prints.
void report_death(const LaunchInfo& info) {
  const auto ranks = read_ranks(folder());
  if (std::none_of(ranks.begin(), ranks.end(), [](const RankView& rank) { return rank.died(); })) return;
  const auto lowest = std::find_if(ranks.begin(), ranks.end(),
                                   [](const RankView& rank) { return rank.process == ProcessState::running; });
  if (lowest != ranks.end() && lowest->record.rank < info.rank && wait_until_printed(kSettle)) return;
  (void)print_table("trireme", info);
}

std::atomic<int> wake_reporter{-1};  // write end of the pipe to the thread below; -1: there is none

void end_now(int number) {
  signal(number, SIG_DFL);
  raise(number);
}

// What the thread below is to do.
constexpr char kEnd = 0, kEndIfDying = 1;

bool wake(char what) {
  const int to = wake_reporter.load();
  return to >= 0 && write(to, &what, 1) == 1;
}

// Only a few functions may be called here, so a thread does the rest.
void on_term(int number) {
  note_signal(number);
  if (!wake(kEnd)) end_now(number);
}

/// Waits for the signal; prints the table if another rank's death is its cause.
void report_then_end(int from, const LaunchInfo& info) {
  sigset_t all;
  sigfillset(&all);
  sigdelset(&all, SIGTERM);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  for (char what = kEnd;;) {
    if (::read(from, &what, 1) < 0) continue;
    const bool dying = job_is_dying();
    if (dying) report_death(info);
    if (dying || what == kEnd) end_now(SIGTERM);
    forget_signal();
    say_request();
  }
}

}  // namespace

bool report_failure(const ranks::Failure& failure, const LaunchInfo& info) {
  end_with_error(failure.code, failure.message);
  if (parent::listens()) {
    parent::failed(failure);
    return true;
  }
  const bool of_communication = failure.code == static_cast<int>(ExitCode::communication);
  if (of_communication && lost() && report_lost_peer(failure.program, info)) return true;
  if (info.rank > 0) std::this_thread::sleep_for(time_for_rank_0(info));
  return false;
}

bool end_if_dying() {
  note_signal(SIGTERM);
  return wake(kEndIfDying);
}

void handle_termination(const LaunchInfo& info) {
  struct sigaction before {};
  if (folder().empty() || sigaction(SIGTERM, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
  int ends[2];
  if (!parent::listens() && pipe2(ends, O_CLOEXEC) == 0) {
    wake_reporter = ends[1];
    std::thread(report_then_end, ends[0], info).detach();
  }
  signal(SIGTERM, on_term);
}

}  // namespace trireme::comm::flight
