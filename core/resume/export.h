// The weights that a run exports, in Hugging Face's layout; with [lora] its adapters, in PEFT's. RUN/model-best holds
// those of the best validation, by the metric of train.best, in one file and as they are trained. RUN/model holds the
// last weights, or these, by run.export, in the files and the dtype that run.export_shard_mb and run.export_dtype say.
// Each folder is replaced as a whole (core/checkpoint/weights/model_folder.h); files that users have added to it stay.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/booster/booster.h"
#include "core/checkpoint/weights/model_files.h"
#include "core/setup/run_config.h"

namespace trireme::train {

inline constexpr const char* kExportedModel = "model";
inline constexpr const char* kBestModel = "model-best";

/// The format of RUN/model.
checkpoint::ExportFormat export_format(const RunSection& run);

/// Replaces a folder of the run's: `write` writes the model into the folder whose path it gets on rank 0. Collective,
/// as `write` is. Returns on rank 0 "", or why the earlier model may be there again after a power failure.
/// @throws CheckpointError on every rank, with the same message; the earlier model is untouched then
std::string replace_model(const comm::World& world, const std::string& folder,
                          const std::function<void(const std::string& next)>& write);

/// Saves the weights that the model has now, or with `lora` its adapters. Collective; rank 0 writes.
FileDigest export_weights(const std::string& folder, Boosted& run, const std::map<std::string, std::string>& texts,
                          const std::optional<LoraSection>& lora, const checkpoint::ExportFormat& format = {});

/// RUN/model-best. All members are collective over the world; rank 0 writes. @throws CheckpointError
class BestModel {
 public:
  /// `texts`: the files next to the tensors, by name. `lora`: only the adapters are exported.
  BestModel(const std::string& run_dir, std::map<std::string, std::string> texts, std::optional<LoraSection> lora);
  /// Saves the model's current weights as the best so far. Returns "", or on rank 0 why they may be the earlier ones
  /// again after a power failure. @throws CheckpointError on every rank, with the same message; the earlier ones are
  /// untouched then, and nothing else is left
  std::string save(Boosted& run);
  /// Sets the best weights so far to the file of a checkpoint. If `file` is "", there are none, and what a later epoch
  /// saved is removed.
  void take(const comm::World& world, const std::string& file, const FileDigest& digest);
  /// Writes them into another folder in the format, with `texts`. Collective. @throws CheckpointError on every rank
  void export_to(const comm::World& world, const std::string& dir, const checkpoint::ExportFormat& format,
                 const std::map<std::string, std::string>& texts) const;
  /// Loads the best weights into the model. Returns false, without changing anything, when a rank cannot read them, for
  /// example because it has another disk.
  bool load(Boosted& run) const;
  /// Of the model's state, the slices that load() writes, named as in the file.
  [[nodiscard]] std::vector<shard::Slice> state(Boosted& run) const;

  /// Path of the tensors on rank 0; "" when there are none, and on the other ranks.
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] const FileDigest& digest() const { return digest_; }

 private:
  [[nodiscard]] const char* file_name() const;
  std::string dir_, file_;
  std::map<std::string, std::string> texts_;
  std::optional<LoraSection> lora_;
  FileDigest digest_;
};

}  // namespace trireme::train
