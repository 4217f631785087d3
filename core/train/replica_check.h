// ReplicaCheck: compares the copies of each parameter that ranks hold, which have to be equal bit for bit. A difference
// means that a rank's memory, its communication or a program has changed a weight on some ranks only.
//
// Each rank computes a 64-bit hash of its slice of every parameter on the device: the sum, mod 2^64, of the elements'
// bits times an odd number that depends on the element's place in the parameter. A change of one element is always
// found, as an odd number has an inverse; several changes cancel each other only by chance. Such sums of parts that
// ZeRO partitions add up to that of the whole, so that masters are compared as well, along the axes that hold them more
// than once. The ranks exchange 16 bytes a parameter and axis set.
//
// Not compared: running statistics and other buffers, and the copies of a weight that two pipeline stages share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/booster/booster.h"

namespace trireme::train {

class ReplicaCheck {
 public:
  /// Makes the groups of ranks that hold copies. Collective over the world.
  explicit ReplicaCheck(Boosted& run);
  /// Compares the weights as they are after step `step`. Waits for the device. Collective over the world.
  /// @throws NonFiniteError, on every rank, that names the parameters and the ranks
  void compare(std::int64_t step);

 private:
  /// Hashes of one kind, in the order of names_: of the weights that layers compute with, or of the masters.
  struct Hashes {
    at::Tensor values;                                   ///< int64 [names]
    std::vector<std::vector<std::string>> copied_along;  ///< the axes with copies, of each
  };
  [[nodiscard]] Hashes of_layers() const;
  [[nodiscard]] Hashes of_masters() const;
  [[nodiscard]] std::vector<std::string> differing(const Hashes& hashes) const;

  Boosted& run_;
  std::vector<std::string> names_;  ///< of the parameters that this rank holds, as in checkpoints
  std::map<std::string, std::size_t> index_;
};

}  // namespace trireme::train
