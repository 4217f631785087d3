#include "core/comm/partition.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/random.h"

namespace trireme::comm {

std::int64_t partition_mark(int rank, const std::vector<int>& members, const std::string& axis) {
  if (members.empty()) return 0;
  const auto hash = random::hash(fmt::format("{} {}", axis, fmt::join(members, " ")));
  return static_cast<std::int64_t>(members.front() == rank ? hash * (members.size() - 1) : ~hash + 1);
}

CommError contradictory_members(const std::vector<int>& members, const std::string& axis) {
  return CommError(fmt::format("group {}: the ranks passed different lists of members; this rank passed [{}]", axis,
                               fmt::join(members, ", ")));
}

}  // namespace trireme::comm
