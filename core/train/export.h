// The weights that a run exports, in Hugging Face's layout: RUN/model holds the last, RUN/model-best those of the epoch
// with the best validation accuracy. Each file appears whole or not at all.
#pragma once

#include <map>
#include <string>

#include "core/booster/booster.h"
#include "core/checkpoint/files.h"

namespace trireme::train {

inline constexpr const char* kLastModel = "model";
inline constexpr const char* kBestModel = "model-best";

/// RUN/model-best. All members are collective over the world; rank 0 writes. @throws CheckpointError
class BestModel {
 public:
  /// `texts`: what stands beside the tensors, by name.
  BestModel(const std::string& run_dir, std::map<std::string, std::string> texts);
  /// The model's weights are the best so far.
  void save(Booster& booster, Boosted& run);
  /// The best so far are those of a checkpoint's file; "": there are none, and what a later epoch left is removed.
  void take(Booster& booster, const std::string& file);
  /// Puts them into the model. False, and nothing changes, where a rank cannot read them: its disk is another.
  bool load(Booster& booster, Boosted& run) const;

  /// Where the tensors are, on rank 0; "" when there are none, and on the other ranks.
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] const checkpoint::FileDigest& digest() const { return digest_; }

 private:
  std::string dir_, file_;
  std::map<std::string, std::string> texts_;
  checkpoint::FileDigest digest_;
};

}  // namespace trireme::train
