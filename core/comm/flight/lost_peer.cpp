#include "core/comm/flight/lost_peer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "core/base/error.h"
#include "core/comm/flight/folder.h"
#include "core/comm/flight/reader.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/report.h"

namespace trireme::comm::flight {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kForParent{5000}, kForAnother{2000};
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

/// Without a parent.
bool report_by_ranks(const std::string& program, const LaunchInfo& info) {
  const auto where = folder();
  if (where.empty()) return false;
  std::this_thread::sleep_for(kSettle);
  const bool one_host = info.local_size == info.size;
  if (!one_host && info.rank != info.local_rank && wait_until_printed(kForFirstHost)) return true;
  if (!is_lowest(read_ranks(where), info.rank) && wait_until_printed(kForAnother)) return true;
  return print_table(program, info);
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

bool report_lost_peer(const std::string& program, int exit_code, const std::string& text, const LaunchInfo& info) {
  end_with_error(exit_code, text);
  if (exit_code != static_cast<int>(ExitCode::communication) || !lost()) return false;
  return has_parent() ? wait_until_printed(kForParent) : report_by_ranks(program, info);
}

}  // namespace trireme::comm::flight
