// The tensors of an exported model: one file, model.safetensors, or several of a limited size with an index of which
// file holds which tensor, model.safetensors.index.json, as Hugging Face's libraries read and write them.
//
// Each file is written atomically, and the index last. Then the files of an earlier export that the new one does not
// replace are removed, so a folder never has two models.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/formats/safetensors.h"

namespace trireme::checkpoint {

/// The file that holds a model's tensors, in its folder, or the index of several.
inline constexpr const char* kModelTensors = "model.safetensors";
inline constexpr const char* kModelIndex = "model.safetensors.index.json";

/// The metadata of each exported file of tensors. The producer is the mark by which a later export knows that it may
/// replace the model (model_folder.h). It goes along with a copied folder, but not when another program writes the
/// tensors anew; transformers, PEFT and the Hub read only the format.
const std::map<std::string, std::string>& export_metadata();
/// Whether the file of tensors has the mark; false if it cannot be read.
bool has_export_mark(const std::string& file);

struct ExportFormat {
  std::int64_t shard_mb = 0;              ///< MiB of tensors in a file, but for a tensor that is larger; 0: one file
  std::optional<at::ScalarType> dtype{};  ///< of floating tensors; unset: as they are
  /// Whether every tensor is written as it is, to one file.
  [[nodiscard]] bool is_plain() const { return shard_mb == 0 && !dtype; }
};

/// Writes texts to the folder, by their file names. @throws CheckpointError
void write_texts(const std::string& folder, const std::map<std::string, std::string>& texts);
/// Writes the tensors, and texts by their file names, to the folder. `value`: see write_tensors(). Returns the digest
/// of the file of tensors; that of several is empty. @throws CheckpointError
FileDigest write_model(const std::string& folder, const std::vector<StoredEntry>& entries,
                       const std::function<at::Tensor(std::size_t)>& value, const ExportFormat& format,
                       const std::map<std::string, std::string>& texts);
/// Writes the tensors of the file in the format. @throws CheckpointError
void export_file(const std::string& file, const std::string& folder, const ExportFormat& format,
                 const std::map<std::string, std::string>& texts);
/// Whether the name is that of a model's file of tensors or of their index.
bool is_model_file(const std::string& name);
/// Whether the name is that of a file of adapters, in PEFT's layout, or of their model's configuration.
bool is_adapter_file(const std::string& name);
/// Removes a model's files of tensors from the folder, except the files `current`.
void remove_other_models(const std::string& folder, const std::vector<std::string>& current);

}  // namespace trireme::checkpoint
