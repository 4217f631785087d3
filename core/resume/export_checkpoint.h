// Exports a checkpoint's weights in Hugging Face's layout, as its run would have done at that step, from its files
// alone: no data, no model, one process. Tensors are read and written one after the other. The files can also be those
// of another library that the kind of model knows (nn::OtherFormat).
//
// With [lora] in its config.toml the export is the merged model, W + alpha / r * B A, as in RUN/model-merged: which of
// the other tensors PEFT's file would hold, only the model itself can say.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/registry.h"
#include "core/checkpoint/manifest.h"
#include "core/nn/model_kind.h"

namespace trireme::train {

struct CheckpointExportOptions {
  std::optional<std::string> dtype{};      ///< "fp32", "bf16" or "fp16"; unset: run.export_dtype of its run
  std::optional<std::int64_t> shard_mb{};  ///< unset: run.export_shard_mb of its run
  std::string names{};                     ///< of nn::OtherFormat, such as "timm"; "": Hugging Face's
  bool merge = false;                      ///< merge the adapters
  bool overwrite = false;                  ///< replace the folder even if it holds other files than an export of ours
  /// Of the weights; sizes if the caller has verified their content.
  checkpoint::Verify verify = checkpoint::Verify::content;
};

struct CheckpointExport {
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;         ///< of the tensors
  std::vector<std::string> files;  ///< that were written: their names
  bool is_average = false;         ///< the tensors are the average of the run's weights
  bool has_config = false;         ///< config.json is among the files
  std::string problem{};           ///< why an earlier export may be there again after a power failure; else ""
};

/// Writes to the folder, which must not exist, be empty, or hold an earlier export; it is replaced as a whole
/// (core/checkpoint/weights/model_folder.h).
/// @throws CheckpointError: a damaged checkpoint, a value beyond the range of the dtype. ConfigError: a folder with
/// other contents, adapters without `merge`, or `merge` without adapters; `names` that the kind of model, one of
/// `models`, does not have, or with which the library would compute something else.
CheckpointExport export_checkpoint(const std::string& checkpoint, const std::string& folder,
                                   const CheckpointExportOptions& options,
                                   const Registry<std::shared_ptr<nn::ModelKind>>& models);

}  // namespace trireme::train
