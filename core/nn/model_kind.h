// ModelKind: a model that [model] name = "..." can choose: its options, its size presets, how it is made, and how its
// configuration is told to and by Hugging Face's config.json.
//
// Order of use: default_options() -> the user's keys -> from_hf() when weights are loaded -> resolve() -> make().
// What the user wrote is never overwritten: from_hf() and resolve() fill what is still unset.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/base/fields.h"

namespace trireme::nn {

class Model;

/// What the data say of the model's inputs and outputs.
struct InputSpec {
  std::int64_t image_size = 0;  ///< pixels, height and width
  std::int64_t channels = 3;
  std::int64_t classes = 0;
  std::vector<std::string> class_names{};  ///< empty, or one a class
};

class ModelKind {
 public:
  virtual ~ModelKind() = default;
  /// The keys of [model] that are this model's own.
  [[nodiscard]] virtual const FieldTable& fields() const = 0;
  /// The options struct that fields() describes.
  [[nodiscard]] virtual std::shared_ptr<void> default_options() const = 0;
  /// Reads a config.json into what the user left unset. False: it is of another kind of model.
  /// @throws ConfigError when it contradicts a key of the user's.
  virtual bool from_hf(void* options, const nlohmann::json& config) const = 0;
  /// Fills the rest: an explicit key beats the size preset, which beats the default. @throws ConfigError for numbers
  /// that do not fit together.
  virtual void resolve(void* options, const InputSpec& inputs) const = 0;
  /// On the meta device; see nn::materialize(). @pre resolved options
  [[nodiscard]] virtual std::unique_ptr<Model> make(const void* options) const = 0;
  /// The config.json of resolved options.
  [[nodiscard]] virtual nlohmann::json to_hf(const void* options) const = 0;
  /// Parameters under it depend on the classes: they may be missing from loaded weights ("classifier.").
  [[nodiscard]] virtual std::string head_prefix() const = 0;
};

}  // namespace trireme::nn
