// Finds and opens the files that hold a model's weights: one file, or several with an index of which file holds which
// tensor, as safetensors or as PyTorch state dicts. Where a folder has both, safetensors is read. In a checkpoint's
// folder the manifest is the index: it says which slices of a tensor are in which files; the average of the weights is
// read, if there is one (open_checkpoint_weights()).
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/checkpoint/formats/weights_file.h"

namespace trireme::checkpoint {

/// Returns the file to open: one with tensors, an index, or a checkpoint's manifest. @throws CheckpointError when there
/// is none.
std::string find_weights(const std::string& folder_or_file);

/// @throws CheckpointError when the file cannot be read or is not JSON.
nlohmann::json read_json(const std::string& path);

/// Opens one file of tensors, by its content. @throws CheckpointError
std::unique_ptr<WeightsFile> open_weights_file(const std::string& path);

/// The tensors of one or several files, by name.
class WeightsSource {
 public:
  /// `path`: see find_weights(). @throws CheckpointError
  explicit WeightsSource(const std::string& path);

  /// The file that holds the tensor; null when none does.
  [[nodiscard]] const WeightsFile* file_of(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] std::size_t file_count() const { return files_.size(); }
  /// WeightsFile::entry() of the first file.
  [[nodiscard]] std::string entry() const { return files_.empty() ? "" : files_.front()->entry(); }

 private:
  void open_shards(const std::string& index);

  std::vector<std::unique_ptr<WeightsFile>> files_;
  std::map<std::string, const WeightsFile*> where_;
};

}  // namespace trireme::checkpoint
