// ModelKind: a model that [model] name = "..." can select: its options, its size presets, how it is made, and how its
// options are written to and read from Hugging Face's config.json.
//
// Order of use: default_options() -> the user's keys -> from_hf() when weights are loaded -> resolve() -> make().
// Keys that the user wrote are never overwritten: from_hf() and resolve() fill in the unset ones.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/nn/block.h"
#include "core/nn/data_spec.h"
#include "core/nn/policy.h"

namespace trireme::nn {

class ModelKind {
 public:
  virtual ~ModelKind() = default;
  /// The keys of [model] that are specific to this model.
  [[nodiscard]] virtual const FieldTable& fields() const = 0;
  /// The options struct that fields() describes.
  [[nodiscard]] virtual std::shared_ptr<void> default_options() const = 0;
  /// Reads a config.json into the options that the user left unset. Returns false when it is for another kind of model.
  /// `file` names it in errors. By default it is one that to_hf() below has written.
  /// @throws ConfigError when it contradicts a key that the user wrote.
  virtual bool from_hf(void* options, const nlohmann::json& config, const std::string& file) const;
  /// Fills in the other options: an explicit key overrides the size preset, which overrides the default.
  /// @throws ConfigError for numbers that are inconsistent, and for data without an input that the model reads.
  /// data.classes: the size of a sample's output, as the task defines it.
  virtual void resolve(void* options, const DataSpec& data) const = 0;
  /// Makes the model on the meta device; see nn::materialize(). @pre `options` is resolved
  [[nodiscard]] virtual std::unique_ptr<Model> make(const void* options) const = 0;
  /// The config.json for resolved options: by default model_type, the kind's name, and each key of fields() by its
  /// name.
  [[nodiscard]] virtual nlohmann::json to_hf(const void* options) const;
  /// How tensor and sequence parallelism shard the model's layers; empty: they do not. @pre `options` is resolved
  [[nodiscard]] virtual Policy policy(const void* /*options*/) const { return {}; }
  /// The name of the task that the model is trained for on these data, unless the user or the loaded weights say
  /// otherwise.
  [[nodiscard]] virtual std::string default_task(const DataSpec& data) const = 0;
  /// Prefix of the parameters whose shapes depend on the classes, such as "classifier."; loaded weights may lack them.
  [[nodiscard]] virtual std::string head_prefix() const { return ""; }
};

/// A ModelKind whose options are a struct T.
template <class T>
class ModelKindOf : public ModelKind {
 public:
  explicit ModelKindOf(const Fields<T>& fields) : fields_(fields) {}
  [[nodiscard]] const FieldTable& fields() const final { return fields_; }
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

 private:
  const Fields<T>& fields_;
};

}  // namespace trireme::nn
