#include "core/comm/flight/failure.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/comm/flight/folder.h"
#include "core/comm/flight/reader.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/report.h"
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

/// Prints the table if no other rank of this host has claimed it.
bool print_table(const std::string& program, const LaunchInfo& info) {
  const auto where = folder();
  if (!claim_report()) return wait_until_printed(kForAnother);
  const bool one_host = info.local_size == info.size;
  const auto text = program + ": " + report(read_ranks(where), {.world_size = info.size, .all_on_this_host = one_host});
  std::fflush(stdout);
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  note_printed();
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

}  // namespace

void report_death(const std::string& program, const LaunchInfo& info) {
  const auto ranks = read_ranks(folder());
  if (std::none_of(ranks.begin(), ranks.end(), [](const RankView& rank) { return rank.died(); })) return;
  const auto lowest = std::find_if(ranks.begin(), ranks.end(),
                                   [](const RankView& rank) { return rank.process == ProcessState::running; });
  if (lowest != ranks.end() && lowest->record.rank < info.rank && wait_until_printed(kSettle)) return;
  (void)print_table(program, info);
}

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

}  // namespace trireme::comm::flight
