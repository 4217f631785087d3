// Assembly: builds full tensors from the ranks' slices, one at a time, for checkpoints, exports and tests.
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
  /// Collective over the mesh's world: rank 0 collects which rank holds which slices. Of copies along an axis, the
  /// first rank's counts. @throws LogicError when the slices of a tensor do not cover each of its elements exactly
  /// once.
  Assembly(std::vector<Slice> mine, comm::Mesh& mesh);

  struct Entry {
    std::string name;
    std::vector<std::int64_t> shape;  ///< of the full tensor
    at::ScalarType dtype;
    bool stored_transposed = false;  ///< see Placement; collect() returns the tensor as it is in memory
  };
  /// Sorted by name: on rank 0 the tensors of all ranks; on other ranks those of which they hold a slice that counts.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  /// Returns the full tensor in rank 0's host memory, and an undefined one on other ranks. Each rank must collect all
  /// of its entries, in an order that all ranks agree on, such as by name.
  [[nodiscard]] at::Tensor collect(std::size_t entry) const;

 private:
  struct Piece {
    int rank;
    Placement placement;
  };
  std::vector<Entry> entries_;
  std::vector<std::vector<Piece>> pieces_;  ///< for each entry, the non-empty pieces; on rank 0
  std::vector<at::Tensor> mine_;            ///< for each entry; undefined: no slice that counts
  comm::World& world_;
};

}  // namespace trireme::shard
