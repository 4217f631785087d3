// Deadline: whether rank 0's clock says that a run has lasted long enough, the same answer on every rank. The answer of
// a step is read `lag` steps later, so that on a GPU the host stays ahead of the device.
#pragma once

#include <cstdint>
#include <optional>

#include "core/comm/world.h"
#include "core/train/readback.h"

namespace trireme::train {

class Deadline {
 public:
  /// On CPU ranks an answer is there at once.
  static std::size_t lag_on(c10::Device device) { return device.is_cpu() ? 0 : 4; }
  Deadline(comm::World& world, std::size_t lag) : world_(world), lag_(lag) {}

  /// Once a step, on every rank. `over`: what this rank's clock says; rank 0's counts. True from `lag` steps after the
  /// first step whose answer was yes.
  bool passed(bool over);

 private:
  comm::World& world_;
  std::size_t lag_;
  std::size_t steps_ = 0;
  std::optional<std::size_t> first_over_;
  Readback answers_;
};

}  // namespace trireme::train
