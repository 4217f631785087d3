// Hugging Face's config.json and the options of a model: each row of a model's field table says its key in the file and
// what a missing key implies (FieldRules::stored, implied, overrides). Numbers keep the bounds of the keys of [model].
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"

namespace trireme::nn {

/// What a kind of model does with the keys of transformers' configuration class that are in no row of its field table:
/// each is in one of these lists. tests/unit/models/config_keys_test.cpp compares them with the classes.
struct HfKeys {
  nlohmann::json used = nlohmann::json::object();   ///< they set options; with the values that a missing key implies
  nlohmann::json fixed = nlohmann::json::object();  ///< others are refused: the model would compute something else
  std::vector<std::string> no_effect{};  ///< on the outputs and the loss of this model, or read by others than its kind
  nlohmann::json written = nlohmann::json::object();  ///< keys of each file that is written for this kind
  std::map<std::string, std::string> aliases{};       ///< names that the class takes for others
};

/// The keys that all configurations have. A kind's own lists come first.
const HfKeys& common_hf_keys();

/// A model's config.json, whose values go into options.
class HfConfig {
 public:
  /// `file` names it in errors. @throws ConfigError for another value of a fixed key, and for two values of one key
  HfConfig(const FieldTable& fields, const HfKeys& keys, const nlohmann::json& values, std::string file);
  /// null: there is none, and its absence implies nothing
  [[nodiscard]] nlohmann::json value(const std::string& key) const { return values_.value(key, nlohmann::json()); }
  /// The value of the row's key; unset if the key is null, or is missing without implying a value. @throws ConfigError
  /// when it has another type, such as null for a number that the model cannot be without, or is out of the bounds
  [[nodiscard]] std::optional<FieldValue> read(const Field& field) const;
  /// The same for a key that is in no row.
  template <class T>
  [[nodiscard]] std::optional<T> read(const std::string& key, const FieldRules& bounds) const {
    Field field;
    field.type = kFieldTypeOf<T>;
    field.rules = bounds;
    field.rules.stored = key;
    const auto found = read(field);
    return found ? std::optional(std::get<T>(*found)) : std::nullopt;
  }
  /// Copies the row's value into `options` if the user did not set the option; otherwise the two must be equal unless
  /// the user's takes precedence. `preset`: the key of the preset that set it, if any. @throws ConfigError
  void take(const Field& field, void* options, const std::string& preset = "") const;
  /// take() for each row that applies. `of_preset`: the keys that the preset set.
  void take_all(void* options, const std::vector<std::string>& of_preset = {}) const;
  /// The same file with other values.
  [[nodiscard]] HfConfig with(const nlohmann::json& values) const;
  [[nodiscard]] const std::string& file() const { return file_; }
  [[noreturn]] void refuse(const std::string& problem) const;

 private:
  void check_only(const std::string& key, const nlohmann::json& supported) const;

  const FieldTable& fields_;
  nlohmann::json implied_, values_;
  std::string file_;
};

/// The key of a row in config.json; "": it has none.
inline const std::string& stored_key(const Field& field) {
  return field.rules.stored ? *field.rules.stored : field.key;
}
nlohmann::json as_json(const FieldValue& value);
/// Each row that applies, by its key in config.json.
nlohmann::json stored_values(const FieldTable& fields, const void* options);

/// The token id of pad_token_id, whose embedding gets no gradient; -1: there is none. As in torch.nn.Embedding, a
/// negative one counts from the end. @throws ConfigError
std::int64_t padding_id(const HfConfig& config, std::int64_t vocab_size);
/// null for -1
inline nlohmann::json stored_id(std::int64_t id) { return id < 0 ? nlohmann::json() : nlohmann::json(id); }

/// Adds id2label and label2id: the classes by number. Those without a name are called LABEL_N, as by Hugging Face. Of
/// classes with one name, id2label has all, and label2id, whose keys are the names, the last one, as transformers makes
/// it from id2label. Nothing is lost: the classes of weights are read from id2label.
void add_labels(nlohmann::json& config, std::int64_t classes, const std::vector<std::string>& names);

}  // namespace trireme::nn
