#include "apps/front/rank_records.h"

#include <fmt/format.h>

#include <cstdio>

#include "apps/report.h"
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

std::string RankRecords::print(const ranks::Cause& cause, const std::vector<ranks::RankState>& states) const {
  const auto ranks = flight::read_ranks(folder_.path());
  const bool killed = cause.end == ranks::End::killed;
  if (ranks_ == 1 || ranks.empty() || (!killed && !flight::is_failure(ranks))) return "";
  flight::ReportOptions options{.world_size = ranks_, .all_on_this_host = true};
  for (const auto& state : states) {
    if (!killed || state.signal() == 0) continue;
    const auto name = fmt::format("rank {}", state.rank);
    options.ended[state.rank] = ranks::ended_by_signal(name, state.signal(), kind_, ranks_).substr(name.size() + 1);
  }
  const auto text = flight::report(ranks, options);
  const auto line = text.find('\n');
  say_error(text.substr(0, line));
  std::fwrite(text.data() + line + 1, 1, text.size() - line - 1, stderr);
  std::fflush(stderr);
  return text.substr(0, line);
}

}  // namespace trireme::apps
