// The report on a run with a dead, stopped, late or confused rank: one table, and who is missing. Uses nothing of
// LibTorch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/comm/flight/reader.h"

namespace trireme::comm::flight {

struct ReportOptions {
  int world_size = 0;
  bool all_on_this_host = true;  ///< otherwise ranks without a record are "not reachable"
  std::map<int, std::string>
      ended{};  ///< how a process has ended, where its parent knows: "was killed by signal 9 ..."
};

/// Whether there is something to report: a rank has died, or an operation has failed.
bool is_failure(const std::vector<RankView>& ranks);

/// What was wrong, in one sentence without a prefix; then the table, a line for each rank; then who is missing and who
/// called something else. Each line ends with a newline.
std::string report(const std::vector<RankView>& ranks, const ReportOptions& options);

}  // namespace trireme::comm::flight
