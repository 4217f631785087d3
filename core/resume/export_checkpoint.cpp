#include "core/resume/export_checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/booster/precision.h"
#include "core/checkpoint/checkpoint_files.h"
#include "core/checkpoint/sharded_tensors.h"
#include "core/checkpoint/train_state.h"
#include "core/checkpoint/weights/adapters.h"
#include "core/checkpoint/weights/model_files.h"
#include "core/checkpoint/weights/model_folder.h"
#include "core/checkpoint/weights/weights.h"
#include "core/checkpoint/weights/weights_source.h"
#include "core/config/table.h"
#include "core/setup/export_texts.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using checkpoint::StoredEntry;

constexpr const char* kLoraA = ".lora_A.weight";
constexpr const char* kLoraB = ".lora_B.weight";

/// Where TOML may have an integer in place of a number.
std::optional<double> number_of(const config::Table& root, const char* section, const char* key) {
  if (const auto whole = root.value<std::int64_t>(section, key)) return static_cast<double>(*whole);
  return root.value<double>(section, key);
}

checkpoint::ExportFormat format_of(const config::Table& root, const CheckpointExportOptions& options) {
  checkpoint::ExportFormat format;
  format.shard_mb =
      options.shard_mb ? *options.shard_mb : root.value<std::int64_t>("run", "export_shard_mb").value_or(0);
  const auto dtype = options.dtype ? options.dtype : root.value<std::string>("run", "export_dtype");
  if (dtype) format.dtype = Precision::pure(*dtype).parameters;
  return format;
}

/// The other files of an exported model: those of the checkpoint that are neither tensors nor the run's state.
std::map<std::string, std::string> texts_of(const std::string& folder, const checkpoint::Manifest& manifest,
                                            const std::optional<at::ScalarType>& dtype) {
  std::set<std::string> others{checkpoint::kState, checkpoint::kConfig, checkpoint::kBest};
  for (const char* group : {checkpoint::kWeights, checkpoint::kOptimizer, checkpoint::kAverage})
    others.merge(checkpoint::files_of(manifest, group));
  std::map<std::string, std::string> texts;
  for (const auto& [name, listed] : manifest.files) {
    if (others.contains(name) || name.ends_with(".safetensors")) continue;
    const auto path = path_in(folder, name);
    if (const auto problem = checkpoint::file_problem(path, listed, checkpoint::Verify::content); !problem.empty())
      throw CheckpointError(problem);
    texts[name] = read_file(path);
  }
  if (const auto config = texts.find(checkpoint::kModelConfig); dtype && config != texts.end()) {
    auto content = checkpoint::read_json((fs::path(folder) / config->first).string());
    set_dtype(content, *dtype);
    config->second = json_text(content, 2) + "\n";
  }
  return texts;
}

/// The folder under a name that can be renamed: not a link, nor "..", nor with a slash at its end.
std::string target_of(const std::string& folder) {
  std::error_code none;
  if (auto real = fs::canonical(folder, none); !none) return real.string();
  const auto path = fs::path(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).string();
}

/// @throws ConfigError when the folder may not be replaced; the message has the remedy
void check_target(const std::string& folder, const std::map<std::string, std::string>& texts, bool overwrite) {
  std::error_code none;
  if (!fs::exists(folder, none)) return;
  if (!fs::is_directory(folder, none)) throw ConfigError(fmt::format("{}: a file; name a folder", folder));
  const auto refuse = [&](const std::string& why) { throw ConfigError(fmt::format("{}: {}", folder, why)); };
  const auto real = fs::canonical(folder, none);
  struct stat inner {
  }, outer{};
  const bool is_mount = ::stat(real.c_str(), &inner) == 0 && ::stat(real.parent_path().c_str(), &outer) == 0 &&
                        inner.st_dev != outer.st_dev;
  if (is_mount || fs::equivalent(folder, fs::current_path(none), none))
    refuse(fmt::format("{}, and an export replaces its folder as a whole; name a new folder in it",
                       is_mount ? "a mount point" : "the working directory"));
  const auto foreign = checkpoint::foreign_files(folder, texts);
  if (foreign.empty()) return;
  // The user may mean a model's files, but hardly a tree of folders, or what a run goes on from.
  if (fs::exists(real / checkpoint::kManifest, none))
    refuse("a checkpoint, which no export replaces; name a new folder");
  for (const auto& name : foreign)
    if (fs::is_directory(real / name, none))
      refuse(fmt::format("holds the folder \"{}\", which no export replaces; name a new folder", name));
  if (!overwrite)
    refuse(
        fmt::format("holds files that are not of an export of Trireme ({}); name a new folder, or add --overwrite "
                    "to replace the folder and all that is in it",
                    text::first_few(foreign)));
}

/// The tensors to write, and how each is read.
class Source {
 public:
  Source(const std::string& folder, const checkpoint::Manifest& manifest, const checkpoint::ExportFormat& format)
      : file_(checkpoint::open_group(folder, manifest, checkpoint::evaluated_group(manifest))) {
    // A model with the average has its own dtype, even if that of the average is wider.
    const auto trained = checkpoint::open_group(folder, manifest, checkpoint::kWeights);
    for (const auto& name : file_->names()) {
      const auto info = file_->info(name);
      const auto own = trained->info(name).dtype;
      entries_.push_back({name, info.shape, format.dtype && c10::isFloatingType(own) ? *format.dtype : own});
    }
  }
  /// Reads layers with adapters merged, without the adapters. @throws CheckpointError
  void merge(double scale) {
    sharded_ = dynamic_cast<const checkpoint::ShardedTensors*>(file_.get());
    if (sharded_ == nullptr)
      throw CheckpointError(
          fmt::format("{}: adapters in a checkpoint of format 1 cannot be merged here; resume the run from it with "
                      "lora.merge = true",
                      file_->path()));
    scale_ = scale;
    std::erase_if(entries_,
                  [](const auto& entry) { return entry.name.ends_with(kLoraA) || entry.name.ends_with(kLoraB); });
  }

  [[nodiscard]] const std::vector<StoredEntry>& entries() const { return entries_; }
  [[nodiscard]] at::Tensor value(std::size_t index) const {
    const auto& entry = entries_[index];
    if (sharded_ == nullptr || !sharded_->tensors().contains(entry.name))  // a part of a tensor has no adapter
      return converted(file_->read(entry.name, shard::Placement::whole(entry.name, entry.shape)), entry);
    const auto full = in_memory(entry.name);
    const auto layer = entry.name.ends_with(".weight") ? entry.name.substr(0, entry.name.rfind('.')) : "";
    const bool adapted = !layer.empty() && sharded_->tensors().contains(layer + kLoraA);
    const auto value =
        adapted ? checkpoint::merged(full, in_memory(layer + kLoraA), in_memory(layer + kLoraB), scale_) : full;
    return checkpoint::converted(sharded_->tensors().at(entry.name).stored_transposed ? value.t() : value, entry);
  }

 private:
  [[nodiscard]] at::Tensor in_memory(const std::string& name) const {
    const auto& tensor = sharded_->tensors().at(name);
    auto placement = shard::Placement::whole(name, tensor.shape);
    placement.stored_transposed = tensor.stored_transposed;
    return sharded_->read(name, placement);
  }

  std::unique_ptr<checkpoint::WeightsFile> file_;
  std::vector<StoredEntry> entries_;
  const checkpoint::ShardedTensors* sharded_ = nullptr;  ///< set: adapters are merged
  double scale_ = 0;
};

/// The tensors of a source under the names of another library, which may hold several of them in one.
class RenamedTensors {
 public:
  RenamedTensors(const Source& source, const nn::Naming& naming) : source_(source) {
    std::map<std::string, std::size_t> found;
    for (std::size_t i = 0; i < source.entries().size(); ++i) {
      auto entry = source.entries()[i];
      const auto stored = naming.find(entry.name).value_or(nn::StoredName{entry.name, entry.name});
      const auto [at, is_new] = found.try_emplace(stored.stored, entries_.size());
      if (is_new) {
        entry.name = stored.stored;
        if (stored.parts > 1) entry.shape.at(0) *= stored.parts;
        entries_.push_back(std::move(entry));
        parts_.emplace_back(static_cast<std::size_t>(stored.parts), kNone);
      }
      parts_[at->second].at(static_cast<std::size_t>(stored.part)) = i;
    }
  }

  [[nodiscard]] const std::vector<StoredEntry>& entries() const { return entries_; }
  [[nodiscard]] at::Tensor value(std::size_t index) const {
    std::vector<at::Tensor> parts;
    for (const auto part : parts_[index]) {
      TRIREME_CHECK(part != kNone, "a part of {} is missing", entries_[index].name);
      parts.push_back(source_.value(part));
    }
    return parts.size() == 1 ? parts.front() : at::cat(parts);
  }

 private:
  static constexpr auto kNone = static_cast<std::size_t>(-1);
  const Source& source_;
  std::vector<StoredEntry> entries_;
  std::vector<std::vector<std::size_t>> parts_;  ///< of each entry, the source's entries
};

/// How the export is written; for Hugging Face's names, without rows. @throws ConfigError
nn::OtherFormat other_format(const config::Table& root, const std::string& names,
                             const Registry<std::shared_ptr<nn::ModelKind>>& models) {
  if (names.empty()) return {};
  const auto name = root.value<std::string>("model", "name").value_or("");
  std::vector<std::string> known;
  for (auto& format : models.at(name)->other_formats()) {
    if (format.naming.library == names) return format;
    known.push_back(format.naming.library);
  }
  throw ConfigError(fmt::format(
      "--names {}: a model \"{}\" {}", names, name,
      known.empty() ? "can only be written with Hugging Face's names; remove the option"
                    : fmt::format("can be written with the names of {}, or without the option with Hugging Face's",
                                  text::join(known))));
}

/// Replaces config.json by the other library's. @throws ConfigError
void rewrite_config(std::map<std::string, std::string>& texts, const nn::OtherFormat& format) {
  const auto content = [&](const char* name) {
    const auto found = texts.find(name);
    return found == texts.end() ? nlohmann::json() : parse_json(found->second);
  };
  const auto config = content(checkpoint::kModelConfig);
  const auto& library = format.naming.library;
  if (config.is_null())
    throw ConfigError(
        fmt::format("--names {}: the checkpoint has no config.json, because a program's own model wrote it", library));
  try {
    texts[checkpoint::kModelConfig] =
        json_text(format.config(config, content(checkpoint::kPreprocessorConfig)), 2) + "\n";
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("--names {}: {}", library, error.what()));
  }
}

/// Alpha / r of a run with adapters. @throws ConfigError for `merge` without adapters, or adapters without it
std::optional<double> adapter_scale(const config::Table& root, const std::string& folder, bool merge) {
  if (root.table("lora") == nullptr) {
    if (merge) throw ConfigError(fmt::format("--merge: {} is of a run without [lora]; remove the option", folder));
    return std::nullopt;
  }
  if (!merge)
    throw ConfigError(
        fmt::format("{}: its run trains adapters ([lora]); add --merge to export the model with the adapters merged "
                    "into its weights. The adapters alone are exported by their run, to its model/",
                    folder));
  const auto rank = number_of(root, "lora", "rank"), alpha = number_of(root, "lora", "alpha");
  if (!rank || !alpha || *rank < 1)
    throw CheckpointError(fmt::format("{}/{}: [lora] has no rank and alpha", folder, checkpoint::kConfig));
  return *alpha / *rank;
}

}  // namespace

CheckpointExport export_checkpoint(const std::string& checkpoint_folder, const std::string& folder,
                                   const CheckpointExportOptions& options,
                                   const Registry<std::shared_ptr<nn::ModelKind>>& models) {
  const at::NoGradGuard no_grad;
  const auto manifest =
      checkpoint::verified_manifest(checkpoint_folder, checkpoint::Verify::sizes, checkpoint::Use::weights);
  const auto config_file = (fs::path(checkpoint_folder) / checkpoint::kConfig).string();
  if (const auto problem =
          checkpoint::file_problem(config_file, manifest.files.at(checkpoint::kConfig), checkpoint::Verify::content);
      !problem.empty())
    throw CheckpointError(problem);
  const auto root = config::parse_text(read_file(config_file), config_file);
  auto format = format_of(root, options);
  const auto scale = adapter_scale(root, checkpoint_folder, options.merge);
  const auto other = other_format(root, options.names, models);
  if (!options.names.empty() && format.shard_mb > 0)
    throw ConfigError(
        fmt::format("--names {}: it reads one file, but {} divides the tensors over several; set "
                    "--shard-mb 0",
                    options.names, options.shard_mb ? "--shard-mb" : "run.export_shard_mb"));
  auto texts = texts_of(checkpoint_folder, manifest, format.dtype);
  if (!options.names.empty()) rewrite_config(texts, other);
  check_target(folder, texts, options.overwrite);
  // Last, because it may read every byte.
  static_cast<void>(checkpoint::verify_checkpoint_weights(checkpoint_folder, options.verify));
  // Frozen weights may be in half precision; all tensors have the dtype that config.json says.
  if (scale && !format.dtype)
    format.dtype = Precision::parse(root.value<std::string>("train", "precision").value_or("fp32")).parameters;
  Source source(checkpoint_folder, manifest, format);
  if (scale) source.merge(*scale);
  const RenamedTensors renamed(source, other.naming);
  const auto& entries = renamed.entries();
  checkpoint::ModelFolder model(target_of(folder));
  checkpoint::write_model(
      model.next(), entries, [&](std::size_t i) { return renamed.value(i); }, format, texts);
  check_target(folder, texts, options.overwrite);  // once more: what it holds now is replaced
  CheckpointExport out;
  out.problem = model.publish();
  out.tensors = static_cast<std::int64_t>(entries.size());
  for (const auto& entry : entries) out.bytes += checkpoint::bytes_of(entry);
  for (const auto& entry : fs::directory_iterator(folder)) out.files.push_back(entry.path().filename().string());
  std::sort(out.files.begin(), out.files.end());
  out.is_average = std::string(checkpoint::evaluated_group(manifest)) == checkpoint::kAverage;
  out.has_config = texts.contains(checkpoint::kModelConfig);
  return out;
}

}  // namespace trireme::train
