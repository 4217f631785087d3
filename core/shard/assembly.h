// Assembly: full tensors from the slices that the ranks hold, one at a time: for checkpoints, exports and tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/mesh.h"
#include "core/shard/placement.h"

namespace trireme::shard {

class Assembly {
 public:
  /// Collective over the mesh's world: rank 0 learns who holds what. Of copies along an axis the first rank's counts.
  /// @throws LogicError when the slices of some tensor do not hold each of its elements once.
  Assembly(std::vector<Slice> mine, comm::Mesh& mesh);

  struct Entry {
    std::string name;
    std::vector<std::int64_t> shape;  ///< of the full tensor
    at::ScalarType dtype;
  };
  /// By name: on rank 0 the tensors of all ranks; on another those of which it holds a slice that counts.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  /// The full tensor in rank 0's host memory; undefined on all others. Each rank collects all of its entries, in an
  /// order that all agree on: by name, for instance.
  [[nodiscard]] at::Tensor collect(std::size_t entry) const;

 private:
  struct Piece {
    int rank;
    Placement placement;
  };
  std::vector<Entry> entries_;
  std::vector<std::vector<Piece>> pieces_;  ///< of each entry, those that hold something; on rank 0
  std::vector<at::Tensor> mine_;            ///< of each entry; undefined: nothing that counts
  comm::World& world_;
};

}  // namespace trireme::shard
