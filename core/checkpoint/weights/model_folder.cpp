#include "core/checkpoint/weights/model_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/owned_folder.h"
#include "core/checkpoint/weights/model_files.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string hidden_beside(const std::string& folder, const char* purpose) {
  const fs::path path(folder);
  return (path.parent_path() / fmt::format(".{}.trireme-{}.tmp", path.filename().string(), purpose)).string();
}

/// Makes the folder if it does not exist, and locks it. Without locks in the file system, the lock is not held.
FileDescriptor lock_folder(const std::string& path, const std::string& wanted) {
  for (int attempts = 0; attempts < 100; ++attempts) {
    make_folder(path);
    FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder && errno == ENOENT) continue;
    if (!folder) throw CheckpointError(write_problem(path, "the folder cannot be opened", errno));
    const bool is_locked = ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    if (is_locked && is_same_folder(folder, path)) return folder;
    if (!is_locked)
      throw ConfigError(
          fmt::format("another process is exporting to {}; wait until it ends, or name another folder", wanted));
  }
  throw CheckpointError(write_problem(path, "the folder cannot be locked", EAGAIN));
}

/// Of a process that died after it renamed the earlier folder: gives its name back if the new one has not got it.
void remove_replaced(const std::string& folder) {
  std::error_code ignored;
  const auto replaced = replaced_model(folder);
  if (!fs::exists(replaced, ignored)) return;
  if (fs::exists(folder, ignored))
    fs::remove_all(replaced, ignored);
  else
    fs::rename(replaced, folder, ignored);
}

bool is_tensor_file(const std::string& name) {
  return name.ends_with(".safetensors") && (is_model_file(name) || name == "adapter_model.safetensors");
}

}  // namespace

std::string next_model(const std::string& folder) { return hidden_beside(folder, "export"); }

std::string replaced_model(const std::string& folder) { return hidden_beside(folder, "old"); }

ModelFolder::ModelFolder(std::string folder) : folder_(std::move(folder)) {
  std::error_code ignored;
  if (fs::is_symlink(folder_, ignored)) folder_ = fs::weakly_canonical(folder_, ignored).string();  // the link stays
  next_ = next_model(folder_);
  if (fs::exists(folder_, ignored) && !fs::is_directory(folder_, ignored))
    throw CheckpointError(write_problem(folder_, "the folder cannot be created", ENOTDIR));
  lock_ = lock_folder(next_, folder_);
  remove_replaced(folder_);
  for (const auto& name : names_in(next_)) fs::remove_all(path_in(next_, name), ignored);
}

ModelFolder::~ModelFolder() {
  std::error_code ignored;
  if (!is_published_) fs::remove_all(next_, ignored);  // before the lock ends
}

void ModelFolder::keep_others() const {
  remove_temporary_files(folder_);
  bool has_copies = false;
  for (const auto& name : names_in(folder_)) {
    const auto from = path_in(folder_, name), to = path_in(next_, name);
    std::error_code error;
    if (is_model_file(name) || is_adapter_file(name) || fs::exists(to, error)) continue;
    constexpr auto kWhole = fs::copy_options::recursive | fs::copy_options::copy_symlinks;
    fs::copy(from, to, kWhole | fs::copy_options::create_hard_links, error);
    if (error) {
      std::error_code ignored;
      fs::remove_all(to, ignored);  // of a folder, some links may have been made
      fs::copy(from, to, kWhole, error);
      has_copies = true;
    }
    if (error) throw CheckpointError(write_problem(to, "cannot be copied from the present folder", error.value()));
  }
  if (has_copies) ::syncfs(lock_.get());  // publish() removes the originals
}

std::string ModelFolder::publish() {
  std::error_code ignored;
  if (const auto present = fs::status(folder_, ignored); fs::exists(present))
    fs::permissions(next_, present.permissions(), ignored);
  // The present folder gets the name of the next one until it is removed: no other process may begin there.
  const FileDescriptor present(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (present) (void)::flock(present.get(), LOCK_EX | LOCK_NB);
  auto problem = publish_folder(next_, folder_, replaced_model(folder_));
  is_published_ = true;
  return problem;
}

void recover_model_folder(const std::string& folder) {
  remove_replaced(folder);
  std::error_code ignored;
  fs::remove_all(next_model(folder), ignored);
}

std::vector<std::string> foreign_files(const std::string& folder, const std::map<std::string, std::string>& texts) {
  std::vector<std::string> all, foreign;
  bool has_mark = false;
  for (const auto& name : names_in(folder)) {
    const auto path = path_in(folder, name);
    std::error_code none;
    const bool is_ours = fs::is_regular_file(path, none) && (is_model_file(name) || texts.contains(name)) &&
                         (!is_tensor_file(name) || has_export_mark(path));
    has_mark = has_mark || (is_ours && is_tensor_file(name));
    all.push_back(name);
    if (!is_ours) foreign.push_back(name);
  }
  return has_mark ? foreign : all;
}

void check_own_model(const std::string& folder) {
  for (const auto& name : names_in(folder)) {
    const bool is_tensors = is_tensor_file(name) || name == "pytorch_model.bin" || name == "adapter_model.bin";
    if (is_tensors && !has_export_mark(path_in(folder, name)))
      throw ConfigError(fmt::format(
          "{}: holds a model without Trireme's mark ({}), which is not replaced; move it away, or name another "
          "folder",
          folder, name));
  }
}

}  // namespace trireme::checkpoint
