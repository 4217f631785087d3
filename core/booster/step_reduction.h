// StepReduction: the one reduction over all ranks that a training step makes in any layout. It sums the ranks' parts of
// the loss, and counts their votes (vote.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "core/booster/vote.h"
#include "core/comm/group.h"
#include "core/comm/mesh.h"

namespace trireme {

class StepReduction {
 public:
  explicit StepReduction(comm::Mesh& mesh);
  /// Holds until the next call for this vote; in the beginning all are false.
  void vote(Vote vote, bool yes) { votes_[static_cast<std::size_t>(vote)] = yes; }

  /// The sums over all ranks, on the device and valid after `sent` is waited for.
  struct Sums {
    at::Tensor loss;   ///< 0-dim
    at::Tensor votes;  ///< [kVotes]
    comm::Work sent;
  };
  /// `part`: this rank's part of the loss, 0-dim. Where ranks have copies of one part, such as along tp, the first
  /// one's counts. Collective over the world.
  Sums start(const at::Tensor& part);

 private:
  const comm::Group& group_;
  bool has_copy_;  ///< another rank's part counts
  std::array<bool, kVotes> votes_{}, on_device_{};
  at::Tensor numbers_;  ///< [kVotes], on_device_ as numbers
};

}  // namespace trireme
