#include "core/checkpoint/weights/model_files.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_text.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBytesOfMb = std::uint64_t{1} << 20;
constexpr const char* kProducer = "producer";
constexpr const char* kAdapterFiles[] = {"adapter_model.safetensors", "adapter_config.json", "model_config.json"};

/// Whether the name is that of one of several files: "model-00001-of-00003.safetensors".
/// A user's own file, such as model-best.safetensors, is none.
bool is_shard(const std::string& name) {
  static const std::regex shard(R"(model-[0-9]+-of-[0-9]+\.safetensors)");
  return std::regex_match(name, shard);
}

}  // namespace

bool is_model_file(const std::string& name) { return name == kModelTensors || name == kModelIndex || is_shard(name); }

bool is_adapter_file(const std::string& name) {
  return std::find(std::begin(kAdapterFiles), std::end(kAdapterFiles), name) != std::end(kAdapterFiles);
}

const std::map<std::string, std::string>& export_metadata() {
  static const std::map<std::string, std::string> all{{"format", "pt"}, {kProducer, "trireme"}};
  return all;
}

bool has_export_mark(const std::string& file) {
  try {
    const SafeTensors stored(file);
    const auto producer = stored.metadata().find(kProducer);
    return producer != stored.metadata().end() && producer->second == export_metadata().at(kProducer);
  } catch (const CheckpointError&) {
    return false;  // damaged, or no file of ours
  }
}

void remove_other_models(const std::string& folder, const std::vector<std::string>& current) {
  auto others = names_in(folder);
  std::erase_if(others, [&](const std::string& name) {
    return !is_model_file(name) || std::find(current.begin(), current.end(), name) != current.end();
  });
  // The index first: without its files it would be a damaged model.
  std::sort(others.begin(), others.end(),
            [](const auto& a, const auto& b) { return a.ends_with(".json") > b.ends_with(".json"); });
  std::error_code ignored;
  for (const auto& name : others) fs::remove(path_in(folder, name), ignored);
}

void write_texts(const std::string& folder, const std::map<std::string, std::string>& texts) {
  for (const auto& [name, text] : texts) write_file(path_in(folder, name), text);
}

FileDigest write_model(const std::string& folder, const std::vector<StoredEntry>& entries,
                       const std::function<at::Tensor(std::size_t)>& value, const ExportFormat& format,
                       const std::map<std::string, std::string>& texts) {
  const auto path = [&](const std::string& name) { return path_in(folder, name); };
  make_folder(folder);
  auto files = split_by_size(
      entries, format.shard_mb == 0 ? UINT64_MAX : static_cast<std::uint64_t>(format.shard_mb) * kBytesOfMb);
  if (files.empty()) files.emplace_back();
  FileDigest digest;
  std::vector<std::string> names;
  if (files.size() == 1) {
    digest = write_tensors(path(kModelTensors), entries, files[0], value, export_metadata());
    names.emplace_back(kModelTensors);
  } else {
    // An earlier index may name files that are about to be replaced one by one.
    std::error_code ignored;
    fs::remove(path(kModelIndex), ignored);
    std::uint64_t total = 0;
    auto where = nlohmann::json::object();
    for (std::size_t i = 0; i < files.size(); ++i) {
      names.push_back(fmt::format("model-{:05d}-of-{:05d}.safetensors", i + 1, files.size()));
      write_tensors(path(names.back()), entries, files[i], value, export_metadata());
      for (const auto index : files[i]) {
        where[entries[index].name] = names.back();
        total += bytes_of(entries[index]);
      }
    }
    names.emplace_back(kModelIndex);
    write_file(path(kModelIndex),
               json_text({{"metadata", {{"total_size", total}}}, {"weight_map", std::move(where)}}, 2) + "\n");
  }
  remove_other_models(folder, names);
  write_texts(folder, texts);
  return digest;
}

void export_file(const std::string& file, const std::string& folder, const ExportFormat& format,
                 const std::map<std::string, std::string>& texts) {
  const SafeTensors stored(file);
  std::vector<StoredEntry> entries;
  for (const auto& [name, entry] : stored.tensors())
    entries.push_back(
        {name, entry.shape, format.dtype && c10::isFloatingType(entry.dtype) ? *format.dtype : entry.dtype});
  write_model(
      folder, entries, [&](std::size_t i) { return converted(stored.read(entries[i].name), entries[i]); }, format,
      texts);
}

}  // namespace trireme::checkpoint
