#include "core/nn/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/bounds.h"
#include "core/base/error.h"
#include "core/config/document.h"
#include "core/nn/model_kind.h"

namespace trireme::nn {
namespace {

/// The stored value as a T, if it is one.
template <class T>
std::optional<T> read_as(const nlohmann::json& stored, const FieldRules& rules) {
  if constexpr (std::is_same_v<T, std::string>) {
    return stored.is_string() ? std::optional(stored.get<T>()) : std::nullopt;
  } else if constexpr (std::is_same_v<T, bool>) {
    return stored.is_boolean() ? std::optional(stored.get<T>()) : std::nullopt;
  } else if constexpr (requires { typename T::value_type; }) {
    if (!stored.is_array()) return std::nullopt;
    T out;
    for (const auto& element : stored) {
      const auto value = read_as<typename T::value_type>(element, rules);
      if (!value) return std::nullopt;
      out.push_back(*value);
    }
    return out;
  } else {
    return read_number<T>(stored, rules);
  }
}

/// The stored value as the field's type; unset when it has another one, or a number is out of the field's bounds.
std::optional<FieldValue> of_type(const nlohmann::json& stored, const Field& field) {
  const auto& rules = field.rules;
  if (rules.one_for_all && stored.is_number()) return read_as<std::int64_t>(stored, rules);
  switch (field.type) {
    case kFieldTypeOf<bool>:
      return read_as<bool>(stored, rules);
    case kFieldTypeOf<std::int64_t>:
      return read_as<std::int64_t>(stored, rules);
    case kFieldTypeOf<double>:
      return read_as<double>(stored, rules);
    case kFieldTypeOf<std::string>:
      return read_as<std::string>(stored, rules);
    case kFieldTypeOf<std::vector<std::int64_t>>:
      return read_as<std::vector<std::int64_t>>(stored, rules);
    case kFieldTypeOf<std::vector<double>>:
      return read_as<std::vector<double>>(stored, rules);
    default:
      return read_as<std::vector<std::string>>(stored, rules);
  }
}

/// Without the other names of keys. @throws ConfigError where a value and the one under another name differ
nlohmann::json without_aliases(const HfConfig& config, const HfKeys& keys, nlohmann::json values) {
  for (const auto& [alias, key] : keys.aliases) {
    if (!values.contains(alias)) continue;
    const auto value = values.at(alias);
    if (values.value(key, value) != value)
      config.refuse(fmt::format("has {} = {} and {} = {}, which are names of one number; remove one", key,
                                values.at(key).dump(), alias, value.dump()));
    values[key] = value;
  }
  return values;
}

}  // namespace

const HfKeys& common_hf_keys() {
  static const HfKeys keys{
      .fixed = {{"is_encoder_decoder", false}, {"pruned_heads", nlohmann::json::object()}},
      .no_effect = {// Read for the task and the names of the classes.
                    "architectures", "id2label", "label2id", "model_type", "problem_type",
                    // Of the program, and of memory.
                    "_name_or_path", "chunk_size_feed_forward", "dtype", "finetuning_task", "output_attentions",
                    "output_hidden_states", "output_scores", "prefix", "return_dict", "return_dict_in_generate",
                    "task_specific_params", "tf_legacy_loss", "tokenizer_class", "torchscript", "transformers_version",
                    "use_bfloat16", "use_cache",
                    // Of models with an encoder and a decoder.
                    "add_cross_attention", "cross_attention_hidden_size", "decoder_start_token_id", "is_decoder",
                    "tie_encoder_decoder",
                    // Of generation.
                    "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "diversity_penalty", "do_sample",
                    "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id",
                    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "length_penalty",
                    "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
                    "num_return_sequences", "pad_token_id", "remove_invalid_values", "repetition_penalty",
                    "sep_token_id", "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
                    // Of models with tokens and a head that scores them.
                    "tie_word_embeddings"}};
  return keys;
}

HfConfig::HfConfig(const FieldTable& fields, const HfKeys& keys, const nlohmann::json& values, std::string file)
    : fields_(fields), implied_(keys.used), values_(keys.used), file_(std::move(file)) {
  values_.update(without_aliases(*this, keys, values));
  for (const auto* list : {&keys.fixed, &common_hf_keys().fixed})
    for (const auto& [key, value] : list->items()) check_only(key, value);
}

/// @throws ConfigError unless the key is missing or has the supported value; null is Python's false
void HfConfig::check_only(const std::string& key, const nlohmann::json& supported) const {
  const auto value = values_.value(key, supported);
  const bool off = supported == false || supported.empty();
  if (value != supported && !(off && value.is_null()))
    refuse(fmt::format("has {} = {}; only {} is supported", key, value.dump(), supported.dump()));
}

void HfConfig::refuse(const std::string& problem) const {
  throw ConfigError(fmt::format("model.weights: {} {}", file_, problem));
}

HfConfig HfConfig::with(const nlohmann::json& values) const {
  auto other = *this;
  other.values_.update(values);
  return other;
}

std::optional<FieldValue> HfConfig::read(const Field& field) const {
  const auto& key = stored_key(field);
  const auto& implied = field.rules.implied;
  const auto found = values_.find(key);
  const bool implies = implied.index() != 0;
  if (found == values_.end()) return implies ? std::optional(implied) : std::nullopt;
  if (found->is_null()) {
    const bool is_bool = field.type == kFieldTypeOf<bool>;
    if (is_bool && implies) return FieldValue(false);  // as in Python
    if (is_bool || (!implies && implied_.value(key, nlohmann::json()).is_null())) return std::nullopt;
  }
  auto value = of_type(*found, field);
  if (!value) refuse(fmt::format("has {} = {}; it must be {}", key, found->dump(), config::allowed_text(field)));
  return value;
}

void HfConfig::take(const Field& field, void* options, const std::string& preset) const {
  const auto theirs = read(field);
  if (!theirs) return;
  const auto ours = field.get(options);
  const bool is_set = ours != field.default_value;
  if (is_set && field.rules.overrides) return;
  if (is_set && ours != *theirs)
    throw ConfigError(
        fmt::format("model.{0}: {1}{2} = {3}, but {4} says {5} = {6}; leave {0} out, or choose other weights",
                    preset.empty() ? field.key : preset, preset.empty() ? "" : "its ", field.key,
                    config::plain_text(ours), file_, stored_key(field), config::plain_text(*theirs)));
  field.set(options, *theirs);
}

void HfConfig::take_all(void* options, const std::vector<std::string>& of_preset) const {
  for (const auto& field : fields_.fields) {
    if (stored_key(field).empty() || !config::applies(fields_, field, options)) continue;
    const bool preset = std::find(of_preset.begin(), of_preset.end(), field.key) != of_preset.end();
    take(field, options, preset ? fields_.presets.key : "");
  }
}

nlohmann::json as_json(const FieldValue& value) {
  return std::visit(
      [](const auto& held) -> nlohmann::json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::monostate>)
          return nullptr;
        else
          return held;
      },
      value);
}

nlohmann::json stored_values(const FieldTable& fields, const void* options) {
  auto out = nlohmann::json::object();
  for (const auto& field : fields.fields)
    if (const auto& key = stored_key(field); !key.empty() && config::applies(fields, field, options))
      out[key] = as_json(field.get(options));
  return out;
}

std::int64_t padding_id(const HfConfig& config, std::int64_t vocab_size) {
  if (config.value("pad_token_id").is_null()) return -1;
  const auto id = config.read<std::int64_t>("pad_token_id", {});
  if (*id < -vocab_size || *id >= vocab_size)
    config.refuse(fmt::format("has pad_token_id = {}, which is none of its {} token ids", *id, vocab_size));
  return *id < 0 ? *id + vocab_size : *id;
}

void add_labels(nlohmann::json& config, std::int64_t classes, const std::vector<std::string>& names) {
  config["id2label"] = config["label2id"] = nlohmann::json::object();
  for (std::int64_t i = 0; i < classes; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const auto name = index < names.size() ? names[index] : fmt::format("LABEL_{}", i);
    config["id2label"][std::to_string(i)] = name;
    config["label2id"][name] = i;
  }
}

const HfKeys& ModelKind::hf_keys() const {
  static const HfKeys none;
  return none;
}

nlohmann::json ModelKind::recognized(const nlohmann::json& config, const std::string& /*file*/) const {
  const bool is_ours = config.is_object() && config.value("model_type", nlohmann::json()) == fields().choice;
  return is_ours ? config : nlohmann::json();
}

bool ModelKind::from_hf(void* options, const nlohmann::json& stored, const std::string& file) const {
  const auto values = recognized(stored, file);
  if (values.is_null()) return false;
  const HfConfig config(fields(), hf_keys(), values, file);
  config.take_all(options, apply_preset(fields(), options));
  read_others(options, config);
  return true;
}

nlohmann::json ModelKind::to_hf(const void* options) const {
  auto config = stored_values(fields(), options);
  config["model_type"] = fields().choice;
  config.update(hf_keys().written);
  write_others(options, config);
  return config;
}

}  // namespace trireme::nn
