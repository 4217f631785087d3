// ModelKind: a model that [model] name = "..." can select: its options, its size presets, how it is made, and how its
// options are written to and read from Hugging Face's config.json.
//
// Order of use: default_options() -> the user's keys -> from_hf() when weights are loaded -> resolve() -> make().
// Keys that the user wrote are never overwritten: from_hf() and resolve() fill in the unset ones. The field table says
// an option once: its key here and in config.json (core/nn/hf_config.h, whose .cpp has from_hf() and to_hf()), its
// bounds, its presets, its default.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/nn/block.h"
#include "core/nn/data_spec.h"
#include "core/nn/naming.h"
#include "core/nn/policy.h"

namespace trireme::nn {

class HfConfig;
struct HfKeys;

/// The files of an exported model as another library has them.
struct OtherFormat {
  Naming naming;  ///< of the tensors; those without a row keep their names
  /// Its config.json for one with the keys of to_hf() and what add_preparation() adds. `preprocessor`: the content of
  /// the preprocessor_config.json beside it, or null. @throws ConfigError for a model that the library cannot compute
  std::function<nlohmann::json(const nlohmann::json& config, const nlohmann::json& preprocessor)> config;
};

class ModelKind {
 public:
  virtual ~ModelKind() = default;
  /// The keys of [model] that are specific to this model, which are those of its config.json too.
  [[nodiscard]] virtual const FieldTable& fields() const = 0;
  /// The options struct that fields() describes.
  [[nodiscard]] virtual std::shared_ptr<void> default_options() const = 0;
  /// Reads a config.json into the options that the user left unset: each row of fields() by its key there, then what
  /// read_others() reads. Returns false when it is for another kind of model. `file` names it in errors.
  /// @throws ConfigError when it contradicts a key that the user wrote, or has a value that the model cannot have
  bool from_hf(void* options, const nlohmann::json& config, const std::string& file) const;
  /// The config.json for resolved options: model_type, each row of fields() by its key there, hf_keys().written, and
  /// what write_others() adds.
  [[nodiscard]] nlohmann::json to_hf(const void* options) const;
  /// Adds to a config.json how the images are prepared, for a library that looks for it there. `preprocessor`: the
  /// content of the preprocessor_config.json beside it.
  virtual void add_preparation(nlohmann::json& /*config*/, const nlohmann::json& /*preprocessor*/) const {}
  /// The libraries in whose format an export can be written, besides that of to_hf().
  [[nodiscard]] virtual std::vector<OtherFormat> other_formats() const { return {}; }
  /// What the kind does with the keys of config.json that are in no row of fields().
  [[nodiscard]] virtual const HfKeys& hf_keys() const;
  /// Fills in the other options: an explicit key overrides the size preset, which overrides the default.
  /// @throws ConfigError for numbers that are inconsistent, and for data without an input that the model reads.
  /// data.classes: the size of a sample's output, as the task defines it.
  virtual void resolve(void* options, const DataSpec& data) const = 0;
  /// Makes the model on the meta device; see nn::materialize(). @pre `options` is resolved
  [[nodiscard]] virtual std::unique_ptr<Model> make(const void* options) const = 0;
  /// How tensor and sequence parallelism shard the model's layers; empty: they do not. @pre `options` is resolved
  [[nodiscard]] virtual Policy policy(const void* /*options*/) const { return {}; }
  /// The name of the task that the model is trained for on these data, unless the user or the loaded weights say
  /// otherwise.
  [[nodiscard]] virtual std::string default_task(const DataSpec& data) const = 0;
  /// Prefix of the parameters whose shapes depend on the classes, such as "classifier."; loaded weights may lack them.
  [[nodiscard]] virtual std::string head_prefix() const { return ""; }

 protected:
  /// The config.json as one with this kind's keys; null when it is for another kind. By default `model_type` decides,
  /// which is the kind's name.
  [[nodiscard]] virtual nlohmann::json recognized(const nlohmann::json& config, const std::string& file) const;
  virtual void read_others(void* options, const HfConfig& config) const = 0;
  virtual void write_others(const void* options, nlohmann::json& config) const = 0;
};

/// Replaces a preset's key by the values that its name stands for; those that are set already stay. Returns the keys
/// that it set. @throws ConfigError for an unknown name, and for one that all its keys override
std::vector<std::string> apply_preset(const FieldTable& fields, void* options);
/// Sets the options that are unset: to the preset's values, else to what a config.json without their keys implies.
/// @throws ConfigError as apply_preset()
void fill_unset(const FieldTable& fields, void* options);

/// A ModelKind whose options are a struct T.
template <class T>
class ModelKindOf : public ModelKind {
 public:
  explicit ModelKindOf(const Fields<T>& fields) : fields_(fields) {}
  [[nodiscard]] const Fields<T>& fields() const final { return fields_; }
  [[nodiscard]] std::shared_ptr<void> default_options() const final { return std::make_shared<T>(); }
  void resolve(void* options, const DataSpec& data) const final { resolve_for(*static_cast<T*>(options), data); }
  [[nodiscard]] std::unique_ptr<Model> make(const void* options) const final {
    return make_model(*static_cast<const T*>(options));
  }

 protected:
  /// As ModelKind::resolve().
  virtual void resolve_for(T& options, const DataSpec& data) const = 0;
  /// As ModelKind::make().
  [[nodiscard]] virtual std::unique_ptr<Model> make_model(const T& options) const = 0;
  /// Reads what no row of fields() does. @throws ConfigError
  virtual void read_from(T& /*options*/, const HfConfig& /*config*/) const {}
  /// Adds what no row of fields() does, or changes it.
  virtual void write_to(const T& /*options*/, nlohmann::json& /*config*/) const {}

 private:
  void read_others(void* options, const HfConfig& config) const final { read_from(*static_cast<T*>(options), config); }
  void write_others(const void* options, nlohmann::json& config) const final {
    write_to(*static_cast<const T*>(options), config);
  }
  const Fields<T>& fields_;
};

}  // namespace trireme::nn
