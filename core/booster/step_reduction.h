// StepReduction: the one reduction over all ranks that a training step makes in any layout. It sums the ranks' parts of
// the loss, and carries with them whether a rank asks for a stop, so that all ranks learn it without a message of its
// own.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/comm/group.h"
#include "core/comm/mesh.h"

namespace trireme {

/// What a rank asks for.
struct StopRequest {
  bool by_signal = false, by_time = false;
  friend bool operator==(const StopRequest&, const StopRequest&) = default;
};

class StepReduction {
 public:
  explicit StepReduction(comm::Mesh& mesh);
  /// Holds until the next call; in the beginning nothing is asked for.
  void ask_to_stop(const StopRequest& request) { request_ = request; }

  /// The sums over all ranks, on the device and valid after `sent` is waited for.
  struct Sums {
    at::Tensor loss;  ///< 0-dim
    at::Tensor stop;  ///< [2]: the numbers of ranks that ask by a signal and by the time
    comm::Work sent;
  };
  /// `part`: this rank's part of the loss, 0-dim. Where ranks have copies of one part, such as along tp, the first
  /// one's counts. Collective over the world.
  Sums start(const at::Tensor& part);

 private:
  const comm::Group& group_;
  bool has_copy_;  ///< another rank's part counts
  StopRequest request_{}, on_device_{};
  at::Tensor requests_;  ///< [2], on_device_ as numbers
};

}  // namespace trireme
