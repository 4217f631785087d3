// StepReduction: the one reduction over all ranks that a training step makes in any layout. It sums the ranks' parts of
// the loss, and carries with them what a rank has to tell the others, so that they learn it without a message of its
// own: whether it asks for a stop, how far it is with a checkpoint that is saved in the background, and whether it has
// an error of which the others do not know.
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

/// Of a checkpoint that this rank writes beside the training.
struct SaveStatus {
  bool is_busy = false, has_failed = false;
  friend bool operator==(const SaveStatus&, const SaveStatus&) = default;
};

class StepReduction {
 public:
  explicit StepReduction(comm::Mesh& mesh);
  /// Each holds until the next call; in the beginning nothing is asked for, nothing is saved, and there is no error.
  void ask_to_stop(const StopRequest& request) { flags_.stop = request; }
  void report_save(const SaveStatus& status) { flags_.save = status; }
  void report_error(bool has_failed) { flags_.has_failed = has_failed; }

  /// The sums over all ranks, on the device and valid after `sent` is waited for.
  struct Sums {
    at::Tensor loss;    ///< 0-dim
    at::Tensor stop;    ///< [2]: the numbers of ranks that ask by a signal and by the time
    at::Tensor save;    ///< [2]: the numbers of ranks that are busy saving, and whose saving has failed
    at::Tensor errors;  ///< 0-dim: the number of ranks that have an error
    comm::Work sent;
  };
  /// `part`: this rank's part of the loss, 0-dim. Where ranks have copies of one part, such as along tp, the first
  /// one's counts. Collective over the world.
  Sums start(const at::Tensor& part);

 private:
  const comm::Group& group_;
  bool has_copy_;  ///< another rank's part counts
  struct Flags {
    StopRequest stop{};
    SaveStatus save{};
    bool has_failed = false;
    friend bool operator==(const Flags&, const Flags&) = default;
  } flags_, on_device_;
  at::Tensor numbers_;  ///< [5], on_device_ as numbers
};

}  // namespace trireme
