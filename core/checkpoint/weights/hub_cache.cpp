#include "core/checkpoint/weights/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/text.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

/// The commit that refs/main names, or else the only snapshot; "" if there is neither.
std::string commit_of(const fs::path& model) {
  std::error_code none;
  if (fs::is_regular_file(model / "refs" / "main", none)) {
    auto commit = read_file((model / "refs" / "main").string());
    commit.erase(commit.find_last_not_of(" \n") + 1);
    if (!commit.empty() && fs::is_directory(model / "snapshots" / commit, none)) return commit;
  }
  const auto commits = names_in((model / "snapshots").string());
  return commits.size() == 1 ? commits.front() : "";
}

}  // namespace

std::string hub_cache() {
  if (const auto cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const auto hf_home = environment("HF_HOME"); !hf_home.empty()) return (fs::path(hf_home) / "hub").string();
  const auto xdg = environment("XDG_CACHE_HOME");
  const auto caches = xdg.empty() ? fs::path(environment("HOME")) / ".cache" : fs::path(xdg);
  return (caches / "huggingface" / "hub").string();
}

bool is_hub_name(const std::string& name_or_path) {
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
  };
  // A path can begin with a dot or a slash so that it is not taken for a name.
  return !name_or_path.empty() && name_or_path.front() != '.' && name_or_path.front() != '/' &&
         name_or_path.back() != '/' && std::count(name_or_path.begin(), name_or_path.end(), '/') <= 1 &&
         std::all_of(name_or_path.begin(), name_or_path.end(), allowed);
}

std::string locate_weights(const std::string& name_or_path) {
  std::error_code none;
  if (const auto scheme = name_or_path.find("://"); scheme != std::string::npos) {
    auto name = name_or_path.substr(scheme + 3);
    name = name.substr(name.find('/') + 1);
    throw CheckpointError(
        fmt::format("{}: an address cannot be loaded; give a local folder, or the name of a model on the Hub{}",
                    name_or_path, is_hub_name(name) ? fmt::format(": \"{}\"", name) : ""));
  }
  if (!is_hub_name(name_or_path) || fs::exists(name_or_path, none)) return name_or_path;
  const auto cache = hub_cache();
  const auto model = fs::path(cache) / ("models--" + text::join(text::split(name_or_path, '/'), "--"));
  if (const auto commit = commit_of(model); !commit.empty()) return (model / "snapshots" / commit).string();
  const auto slash = name_or_path.find('/');
  // A mistyped path is not a Hub model: if its first folder exists here, the caller reports what is missing.
  if (slash == std::string::npos || fs::is_directory(name_or_path.substr(0, slash), none)) return name_or_path;
  throw CheckpointError(
      fmt::format("{0}: no such file or folder, and the Hugging Face cache ({1}) has no model of that name; to "
                  "download one from the Hub: hf download {0} config.json model.safetensors preprocessor_config.json",
                  name_or_path, cache));
}

}  // namespace trireme::checkpoint
