// Restored: the tensors that a run takes from a checkpoint.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/booster/booster.h"
#include "core/checkpoint/train_state.h"

namespace trireme {

/// The names of the parameters that only other ranks hold.
std::set<std::string> remote_parameters(ModelAndOptimizer& run);

/// This rank's slices of a checkpoint's groups of tensors. Nothing of the run changes before fill().
class Restored {
 public:
  Restored(ModelAndOptimizer& run, const checkpoint::Checkpoint& stored);
  /// @throws CheckpointError when the checkpoint's tensors are not those of the run
  void check() const {
    for (const auto& g : groups_) checkpoint::check_slices(*g.file, g.slices, remote_, g.what, g.converted);
  }
  /// Verifies the bytes of those slices that the checkpoint has. @throws CheckpointError
  void verify() const;
  /// @pre check()
  void fill() {
    for (auto& g : groups_) checkpoint::fill_slices(*g.file, std::move(g.slices));
  }
  [[nodiscard]] bool lacks_buffers() const { return lacks_buffers_; }

 private:
  struct Group {
    const checkpoint::WeightsFile* file;
    const char* what;  ///< in messages
    std::vector<shard::Slice> slices;
    std::set<std::string> converted;  ///< see restore_slices()
  };
  std::vector<shard::Slice> state_of(ModelAndOptimizer& run, const checkpoint::WeightsFile& weights);

  std::set<std::string> remote_;  ///< names of tensors that other ranks restore
  std::vector<Group> groups_;
  bool lacks_buffers_ = false;
};

}  // namespace trireme
