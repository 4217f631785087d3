#include "apps/launcher/rank_records.h"

#include <fmt/format.h>

#include "core/base/environment.h"
#include "core/comm/flight/reader.h"
#include "core/comm/flight/record.h"
#include "core/comm/flight/report.h"

namespace trireme::apps {

namespace flight = comm::flight;

// Without a folder the variable is empty, because that of an outer run must not be used.
void RankRecords::set_variable(std::vector<std::string>& environment) const {
  trireme::set_variable(environment, flight::kFolderVariable, folder_.path());
}

std::string RankRecords::table(const ranks::Cause& cause, const std::vector<ranks::RankState>& states) const {
  const auto ranks = flight::read_ranks(folder_.path());
  const bool killed = cause.end == ranks::End::killed;
  if (ranks_ == 1 || ranks.empty() || (!killed && !flight::is_failure(ranks))) return "";
  flight::ReportOptions options{.world_size = ranks_, .all_on_this_host = true};
  for (const auto& state : states) {
    if (!killed || state.signal() == 0) continue;
    const auto name = fmt::format("rank {}", state.rank);
    options.ended[state.rank] = ranks::ended_by_signal(name, state.signal(), kind_, ranks_).substr(name.size() + 1);
  }
  return flight::report(ranks, options);
}

}  // namespace trireme::apps
