// The folder of an exported model, which is replaced as a whole: the model is written to .FOLDER.trireme-export.tmp
// beside it, synced, and gets its name by one rename, or by an exchange of the two names (publish_folder()). A process
// that dies at any moment leaves the earlier model or the new one under the name, and each is whole. What else it
// leaves, that folder or, on file systems that cannot exchange names, .FOLDER.trireme-old.tmp, is removed or renamed
// back when the folder is next written: these hidden names are ours alone.
//
// A model of ours is known by a mark in its files of tensors (export_metadata()). Exports of versions that set no mark
// are treated as anybody else's.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/file_descriptor.h"

namespace trireme::checkpoint {

/// Where the next model of the folder is written.
std::string next_model(const std::string& folder);
/// Where the earlier model is while the next one gets its name, on file systems that cannot exchange names.
std::string replaced_model(const std::string& folder);

/// One replacement of the folder. While the object exists, no other one has the same folder, in any process.
class ModelFolder {
 public:
  /// Makes the folder to write to, empty. @throws ConfigError when another process is writing there; CheckpointError
  explicit ModelFolder(std::string folder);
  /// Without publish(), nothing is left of the new model.
  ~ModelFolder();
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  /// Where the new model is to be written.
  [[nodiscard]] const std::string& next() const { return next_; }
  /// Takes along, as links, the files in the present folder that are no part of a model. @throws CheckpointError
  void keep_others() const;
  /// Puts the new model in place of the present folder. Returns and throws as publish_folder().
  [[nodiscard]] std::string publish();

 private:
  std::string folder_, next_;
  FileDescriptor lock_;
  bool is_published_ = false;
};

/// Removes and renames what a process that died has left beside the folder. No other process may write it now.
void recover_model_folder(const std::string& folder);

/// What a folder holds besides an export of ours, which may have had `texts`: the names of all files if it has no file
/// of tensors with our mark, else of those that an export has not. Empty: the folder may be replaced; it need not
/// exist.
std::vector<std::string> foreign_files(const std::string& folder, const std::map<std::string, std::string>& texts);

/// For files that are written into a folder, where others stay. @throws ConfigError when it holds a model without our
/// mark
void check_own_model(const std::string& folder);

}  // namespace trireme::checkpoint
