#include "core/checkpoint/checkpoint_folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "core/base/error.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

fs::path root_of(const std::string& run_dir) { return fs::path(run_dir) / "checkpoints"; }

/// The folders and files of a run's checkpoints; none if it has no folder for them.
std::vector<std::string> entries(const std::string& run_dir) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator at(root_of(run_dir), error), end; !error && at != end; at.increment(error))
    out.push_back(at->path().string());
  return out;
}

/// What a crash in publish_folder() has left: the present paths, and those to which they belong.
std::vector<std::pair<std::string, std::string>> nameless(const std::string& run_dir) {
  std::vector<std::pair<std::string, std::string>> out;
  std::error_code none;
  for (const auto& folder : entries(run_dir)) {
    if (!folder.ends_with(kReplaced)) continue;
    auto name = folder.substr(0, folder.size() - std::string_view(kReplaced).size());
    if (step_of_folder(name) >= 0 && !fs::exists(name, none)) out.emplace_back(folder, std::move(name));
  }
  return out;
}

}  // namespace

std::string checkpoint_folder(const std::string& run_dir, std::int64_t step) {
  return (root_of(run_dir) / fmt::format("step-{:08d}", step)).string();
}

std::int64_t step_of_folder(const std::string& folder) {
  const auto name = fs::path(folder).filename().string();
  if (!name.starts_with("step-")) return -1;
  const auto digits = name.substr(5);
  const bool number = !digits.empty() && digits.size() < 19 &&
                      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  return number ? std::stoll(digits) : -1;
}

std::vector<std::string> complete_checkpoints(const std::string& run_dir) {
  auto folders = entries(run_dir);
  std::erase_if(folders, [](const auto& folder) { return step_of_folder(folder) < 0; });
  std::sort(folders.begin(), folders.end(),
            [](const auto& a, const auto& b) { return step_of_folder(a) > step_of_folder(b); });
  return folders;
}

std::vector<std::string> all_checkpoints(const std::string& run_dir) {
  auto folders = entries(run_dir);
  std::erase_if(folders, [](const auto& folder) {
    std::error_code none;
    return !fs::path(folder).filename().string().starts_with("step-") || !fs::is_directory(folder, none);
  });
  return folders;
}

bool has_replaced(const std::string& run_dir) { return !nameless(run_dir).empty(); }

void restore_replaced(const std::string& run_dir) {
  std::error_code ignored;
  for (const auto& [aside, name] : nameless(run_dir)) fs::rename(aside, name, ignored);
}

void remove_leftovers(const std::string& run_dir) {
  restore_replaced(run_dir);
  std::error_code ignored;
  for (const auto& folder : entries(run_dir))
    if (fs::path(folder).filename().string().starts_with("step-") && folder.ends_with(kTemporary))
      fs::remove_all(folder, ignored);
}

void remove_older(const std::string& run_dir, const std::string& newest, std::int64_t keep) {
  std::int64_t retained = 1;
  for (const auto& folder : complete_checkpoints(run_dir)) {
    if (folder == newest || retained++ < keep) continue;
    // Rename first: an interrupted removal must not leave a partial checkpoint under a complete one's name.
    std::error_code error;
    fs::rename(folder, folder + kTemporary, error);
    if (!error) fs::remove_all(folder + kTemporary, error);
  }
}

std::vector<std::string> set_aside_after(const std::string& run_dir, std::int64_t step) {
  std::vector<std::string> out;
  for (const auto& folder : complete_checkpoints(run_dir)) {
    if (step_of_folder(folder) <= step) break;
    auto aside = folder + kAside;
    for (int n = 2; fs::exists(aside); ++n) aside = fmt::format("{}{}.{}", folder, kAside, n);
    std::error_code error;
    fs::rename(folder, aside, error);
    if (error)
      throw CheckpointError(fmt::format("{}: this checkpoint of a later step cannot be renamed to {}: {}", folder,
                                        aside, error.message()));
    out.push_back(aside);
  }
  return out;
}

}  // namespace trireme::checkpoint
