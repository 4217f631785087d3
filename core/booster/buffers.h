// BufferSync: keeps the buffers of a model, such as running statistics, equal on the ranks that have copies of them.
// BufferUndo: takes back what a skipped step did to them.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "core/comm/mesh.h"

namespace trireme::nn {
class Model;
}

namespace trireme {

/// Each rank's forward pass updates its buffers from its own samples. After a step, the copies become those of the
/// first of the ranks that run the same blocks: as with PyTorch's DistributedDataParallel, but at the end of the step
/// instead of before the next one, so that an evaluation and a checkpoint find them equal too. Forward passes in
/// training mode without a step leave them different.
class BufferSync {
 public:
  /// Makes the copies equal once. `each_step`: false leaves each rank its own values afterwards. Collective.
  BufferSync(nn::Model& model, comm::Mesh& mesh, bool each_step);

  /// Called after the last forward pass of a step. The copies are equal when finish() has returned. Collective.
  void start();
  void finish();

 private:
  void launch();

  std::vector<std::vector<at::Tensor>> buffers_;  ///< one list for each dtype
  std::vector<at::Tensor> packed_;                ///< each list packed into one tensor, while its broadcast runs
  std::vector<comm::Work> pending_works_;
  comm::Group group_;
  bool each_step_;
};

/// The buffers as they were before a step, for a step that may be skipped: its forward passes have put values that are
/// not finite into running statistics, where they would stay for ever.
class BufferUndo {
 public:
  explicit BufferUndo(nn::Model& model);
  /// Restores the buffers if `skipped` is nonzero; decided on the device. `skipped`: 0-dim.
  void finish(const at::Tensor& skipped);

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;  ///< each buffer and its earlier value
};

}  // namespace trireme
