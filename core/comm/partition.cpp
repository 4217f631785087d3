#include "core/comm/partition.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/base/random.h"

namespace trireme::comm {

std::int64_t partition_mark(int rank, const std::vector<int>& members, const std::string& axis) {
  if (members.empty()) return 0;
  const auto hash = static_cast<std::int64_t>(random::hash(fmt::format("{} {}", axis, fmt::join(members, " "))) >> 32);
  return members.front() == rank ? hash * (static_cast<std::int64_t>(members.size()) - 1) : -hash;
}

CommError contradictory_members(const std::vector<int>& members, const std::string& axis) {
  return CommError(fmt::format("group {}: the ranks passed different lists of members; this rank passed [{}]", axis,
                               fmt::join(members, ", ")));
}

void check_partition(c10d::Store& store, const std::string& key, int rank, int size, const std::vector<int>& members,
                     const std::string& axis) {
  std::string total;
  try {
    store.add(key + "sum", partition_mark(rank, members, axis));
    if (store.add(key + "came", 1) == size) store.set(key + "total", std::to_string(store.add(key + "sum", 0)));
    total = store.get_to_str(key + "total");
  } catch (const c10::Error& error) {
    throw CommError(
        fmt::format("group {}: not all {} ranks came to make it ({})", axis, size, error.what_without_backtrace()));
  }
  if (total != "0") throw contradictory_members(members, axis);
}

}  // namespace trireme::comm
