// Storage: which ranks see the same folder. Hosts without a shared file system have a folder each under the same path.
// The ranks of such a storage keep their part of a checkpoint there (manifest.h), and the first of them makes and
// removes the folders.
#pragma once

#include <string>
#include <vector>

#include "core/comm/world.h"

namespace trireme::checkpoint {

struct Storage {
  int rank = 0;                      ///< this process's, in the world
  std::vector<int> of_rank{0};       ///< the storage of each rank, counted from that of rank 0, which is 0
  std::vector<std::string> hosts{};  ///< of each storage: the host of its first rank
  [[nodiscard]] bool is_shared() const { return hosts.size() <= 1; }
  [[nodiscard]] int number() const { return of_rank.at(static_cast<std::size_t>(rank)); }
  /// Whether this is the first rank of its storage.
  [[nodiscard]] bool leads() const;
  [[nodiscard]] bool has(int other) const { return of_rank.at(static_cast<std::size_t>(other)) == number(); }
};

/// Finds it by small files that other ranks look for, and makes the folder where it does not exist. Collective.
/// @throws CheckpointError, on every rank, when a rank cannot write there
Storage find_storage(const std::string& folder, const comm::World& world);

}  // namespace trireme::checkpoint
