#include "core/comm/flight/failure.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/comm/flight/folder.h"
#include "core/comm/flight/reader.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/report.h"
#include "core/comm/flight/stopping.h"
#include "core/launch/cause.h"
#include "core/launch/parent.h"

namespace trireme::comm::flight {
namespace {

using std::chrono::milliseconds;
/// For the rank that has claimed to print.
constexpr milliseconds kForAnother{2000};
/// Ranks that fail at the same time leave their marks, so that the lowest of them prints.
constexpr milliseconds kSettle{300};
/// A host without rank 0 lets that rank print and end all others.
constexpr milliseconds kForFirstHost{3000};

/// Returns whether the condition holds within this time.
bool wait_for(milliseconds patience, const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return true;
}

/// Whether a rank of this host is about to print why the run ends, or has.
bool is_claimed() {
  auto* shared = shared_control();
  return shared != nullptr && std::atomic_ref(shared->claimed).load() != 0;
}

/// Whether one has printed it, or does within this time.
bool is_printed_within(milliseconds patience) {
  auto* shared = shared_control();
  return wait_for(patience, [&] { return shared != nullptr && std::atomic_ref(shared->printed).load() != 0; });
}

/// Calls `print` if no other thread or rank of this host has claimed to; else waits until that has printed, or claims
/// it in place of one that does not. Returns whether this rank has printed, now or before.
bool print_once(const LaunchInfo& info, const std::function<void()>& print) {
  auto* shared = shared_control();
  std::int32_t by = 0;  // 1 + the rank that has claimed it
  while (shared != nullptr && !std::atomic_ref(shared->claimed).compare_exchange_strong(by, info.rank + 1)) {
    const bool is_printed = is_printed_within(kForAnother);
    if (is_printed || by == info.rank + 1) return by == info.rank + 1;
  }
  print();
  if (shared != nullptr) std::atomic_ref(shared->printed).store(1);
  return true;
}

void print_table(const std::string& program, const LaunchInfo& info) {
  print_once(info, [&] {
    const auto where = folder();
    if (auto* shared = shared_control()) std::atomic_ref(shared->dying).store(1);
    const bool one_host = info.local_size == info.size;
    const auto text =
        program + ": " + report(read_ranks(where), {.world_size = info.size, .all_on_this_host = one_host});
    std::fflush(stdout);
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
    remove_folder(where);
  });
}

/// Whether a rank of this host below this one has ended so.
bool is_below(const std::vector<RankView>& ranks, int rank, EndKind end) {
  return std::any_of(ranks.begin(), ranks.end(), [&](const RankView& view) {
    return view.record.end == end && view.record.rank < rank && view.process != ProcessState::gone;
  });
}

/// Whether rank 0 is on this host, whichever way its launcher has numbered the ranks.
bool is_host_of_rank_0(const LaunchInfo& info) {
  if (info.local_size == info.size || info.rank == info.local_rank) return true;
  const auto ranks = read_ranks(folder());
  return std::any_of(ranks.begin(), ranks.end(), [](const RankView& view) { return view.record.rank == 0; });
}

/// For a rank that has lost a peer. An error of another rank's own is why, and is said alone.
bool report_lost_peer(const std::string& program, const LaunchInfo& info) {
  const auto where = folder();
  if (where.empty()) return false;
  std::this_thread::sleep_for(kSettle);
  const auto ranks = read_ranks(where);
  const bool has_cause =
      std::any_of(ranks.begin(), ranks.end(), [](const RankView& view) { return view.record.end == EndKind::error; });
  if (!is_host_of_rank_0(info) && is_printed_within(kForFirstHost)) return true;
  if ((is_claimed() || has_cause || is_below(ranks, info.rank, EndKind::lost)) && is_printed_within(kForAnother))
    return true;
  print_table(program, info);
  return true;
}

/// Gives ranks of this host below this one, which may have the same error, a moment to say it. Returns whether one
/// has.
bool is_said_below(const LaunchInfo& info) {
  if (info.local_rank == 0 || folder().empty()) return false;
  std::vector<RankView> ranks;
  wait_for(kSettle, [&] {
    ranks = read_ranks(folder());
    return is_claimed() ||
           std::count_if(ranks.begin(), ranks.end(), [&](const RankView& view) {
             return view.record.rank < info.rank && (view.failed() || view.process == ProcessState::gone);
           }) == info.local_rank;
  });
  return is_below(ranks, info.rank, EndKind::error) && is_printed_within(kForAnother);
}

/// Removes the folder after this rank has said an error. Ranks that have not connected yet may still come to the same
/// error, and must find that it is said.
void leave_folder(const LaunchInfo& info, bool has_said, bool of_all) {
  const auto where = folder();
  if (where.empty()) return;
  const auto all_have_failed = [&] {
    const auto ranks = read_ranks(where);
    return std::count_if(ranks.begin(), ranks.end(), [](const RankView& view) { return view.failed(); }) ==
           info.local_size;
  };
  const auto is_removed = [&] { return access(where.c_str(), F_OK) != 0; };
  // The end of a rank that has not said it might make the launcher kill the one that removes the folder.
  if (of_all) wait_for(kForAnother, [&] { return has_said ? all_have_failed() : is_removed(); });
  if (has_said) remove_folder(where);
}

/// For a rank that its launcher ends because another one has died. The lowest rank of this host prints.
void report_death(const LaunchInfo& info) {
  const auto ranks = read_ranks(folder());
  if (std::none_of(ranks.begin(), ranks.end(), [](const RankView& rank) { return rank.died(); })) return;
  const auto lowest = std::find_if(ranks.begin(), ranks.end(),
                                   [](const RankView& rank) { return rank.process == ProcessState::running; });
  if (lowest != ranks.end() && lowest->record.rank < info.rank && is_printed_within(kSettle)) return;
  print_table("trireme", info);
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

void report_failure(const ranks::Failure& failure, const LaunchInfo& info,
                    const std::function<void(const std::string& message)>& say) {
  end_with_error(failure.code, failure.message);
  if (parent::listens()) return parent::failed(failure);
  const bool of_communication = failure.code == static_cast<int>(ExitCode::communication);
  if (of_communication && lost() && report_lost_peer(failure.program, info)) return;
  const bool shares = shared_control() != nullptr;
  if (!failure.of_all && is_said_below(info)) return;
  // Without a place that they share, the ranks of one host are like hosts of their own.
  const bool is_first = info.rank == 0 || (shares && is_host_of_rank_0(info));
  if (!is_first && is_printed_within(kForFirstHost)) return;
  const bool has_said = print_once(info, [&] { say(ranks::message_of(info.rank, failure)); });
  leave_folder(info, has_said, failure.of_all);
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
