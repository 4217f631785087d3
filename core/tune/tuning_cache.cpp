#include "core/tune/tuning_cache.h"

#include <fmt/format.h>

#include <filesystem>
#include <stdexcept>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/files/digest.h"
#include "core/base/files/files.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/text.h"

namespace trireme::tune {
namespace {

namespace fs = std::filesystem;

/// "": this user has no cache.
std::string file_of(const TuningKey& key) {
  const auto folder = cache_folder("tuning");
  if (folder.empty()) return "";
  const auto of = json_text({key.of, key.where.value("device", "")});  // machines may share a home folder
  return path_in(folder, fmt::format("{:08x}-{:x}.json", crc32(0, of.data(), of.size()), of.size()));
}

/// Of a file that may hold anything.
std::string shown(const nlohmann::json& value) {
  return text::printable(value.is_string() ? value.get<std::string>() : json_text(value)).substr(0, 80);
}

/// The first difference: "libtorch: 2.10.0, now 2.11.0"; "": there is none.
/// @throws std::invalid_argument
std::string difference(const nlohmann::json& before, const nlohmann::json& now) {
  if (!before.is_object()) throw std::invalid_argument("not an object");
  for (const auto& [name, value] : now.items()) {
    const auto found = before.find(name);
    if (found == before.end() || *found != value)
      return !value.is_primitive() || value.dump().size() > 80
                 ? fmt::format("another {}", name)
                 : fmt::format("{}: {}, now {}", name, found == before.end() ? "unknown" : shown(*found), shown(value));
  }
  return "";
}

}  // namespace

std::string tuning_text(const TuningKey& key, const Tuning& tuning) {
  auto content = tuning.json();
  content["of"] = key.of;
  content["where"] = key.where;
  return json_text(content, 2) + "\n";
}

StoredTuning parse_tuning(const std::string& text, const TuningKey& key) {
  if (text.empty()) return {};
  try {
    const auto content = parse_json(text);
    for (const auto& [part, now] : {std::pair{"of", &key.of}, std::pair{"where", &key.where}})
      if (auto why = difference(content.at(part), *now); !why.empty()) return {.stale = std::move(why)};
    return {.tuning = Tuning::from_json(content)};
  } catch (const nlohmann::json::exception&) {
    return {.stale = "it is damaged"};
  } catch (const std::invalid_argument&) {
    return {.stale = "it is damaged"};
  }
}

std::string read_cached_tuning(const TuningKey& key) {
  const auto file = file_of(key);
  std::error_code none;
  if (file.empty() || !fs::is_regular_file(file, none)) return "";
  try {
    return read_file(file);
  } catch (const CheckpointError&) {
    return "";  // another user's, or a file system that fails: the run tunes without it
  }
}

bool cache_tuning(const TuningKey& key, const Tuning& tuning) {
  const auto file = file_of(key);
  if (file.empty()) return false;
  try {
    make_folder(fs::path(file).parent_path().string());
    write_file(file, tuning_text(key, tuning));
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

}  // namespace trireme::tune
