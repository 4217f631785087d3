// Partitions of the world into groups (World::partition): how ranks find out that their lists of members contradict
// each other, before the first operation of a group would wait for ever. Private to core/comm.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace trireme::comm {

/// This rank's mark of a partition. Summed over the world it is zero if all members of each group pass the same list.
/// `members`: the world ranks of this rank's group, in group order; empty if it is in none.
std::int64_t partition_mark(int rank, const std::vector<int>& members, const std::string& axis);

/// For a sum of marks that is not zero.
CommError contradictory_members(const std::vector<int>& members, const std::string& axis);

/// Sums the marks of all `size` ranks in a store, for groups that have no messages yet: three requests per rank. A rank
/// waits in the store for the others. `key`: a prefix that no other agreement uses.
/// @throws CommError on every rank when the lists contradict each other; when a rank does not come in the store's time
void check_partition(c10d::Store& store, const std::string& key, int rank, int size, const std::vector<int>& members,
                     const std::string& axis);

}  // namespace trireme::comm
