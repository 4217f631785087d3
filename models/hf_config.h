// Helpers that convert models' options from and to Hugging Face's config.json.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/bounds.h"
#include "core/base/error.h"
#include "core/base/fields.h"

namespace trireme::models {

/// What a kind of model does with the keys of transformers' configuration: each key of its class is in one list.
/// tests/unit/models/config_keys_test.cpp compares the lists with the classes.
struct HfKeys {
  nlohmann::json used;                 ///< they set options; with the values that a missing key implies
  nlohmann::json fixed;                ///< other values than these are refused: the model would compute something else
  std::vector<std::string> no_effect;  ///< on the outputs and the loss of this model, or read by others than its kind
};

/// The keys that all configurations have. A kind's own lists come first.
inline const HfKeys& common_hf_keys() {
  static const HfKeys keys{
      .used = nlohmann::json::object(),
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

/// A model's config.json, whose values go into options. Their numbers keep the bounds that the keys of [model] have.
class HfConfig {
 public:
  HfConfig(const FieldTable& fields, nlohmann::json values, const std::string& file)
      : fields_(fields), values_(std::move(values)), file_(file) {}
  /// The same with the values that missing keys imply. @throws ConfigError for another value of a fixed key
  HfConfig(const FieldTable& fields, const HfKeys& keys, const nlohmann::json& values, const std::string& file)
      : fields_(fields), implied_(keys.used), values_(keys.used), file_(file) {
    values_.update(values);
    for (const auto* list : {&keys.fixed, &common_hf_keys().fixed})
      for (const auto& [key, value] : list->items()) check_only(key, value);
  }
  /// null: there is none
  [[nodiscard]] nlohmann::json value(const char* name) const { return values_.value(name, nlohmann::json()); }

  /// The value of `name`; unset if the key is missing or null. @throws ConfigError when it has another type, such as
  /// null for a number that the model cannot be without, or is a number out of the bounds
  template <class T>
  [[nodiscard]] std::optional<T> read(const char* name, const FieldRules& bounds) const {
    const auto stored = value(name);
    const bool may_be_null = std::is_same_v<T, bool> || implied_.value(name, nlohmann::json()).is_null();
    if (stored.is_null() && may_be_null) return std::nullopt;
    const auto must_be = [&](const std::string& what) {
      refuse(fmt::format("has {} = {}; it must be {}", name, stored.dump(), what));
    };
    if constexpr (std::is_same_v<T, bool>) {
      if (!stored.is_boolean()) must_be("true or false");
      return stored.get<bool>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!stored.is_string()) must_be("a string");
      return stored.get<std::string>();
    } else {
      const auto number = read_number<T>(stored, bounds);
      if (!number) must_be(number_text<T>(bounds));
      return number;
    }
  }
  /// Copies the value of `name` into `option` if the user did not set it; otherwise the two must be equal. `key`: that
  /// of [model], whose bounds apply; a size that has no key there has those of size_rules(). `cause`: the key that the
  /// user wrote, if it is another one, which implies this.
  template <class T>
  void take(const char* name, const std::string& key, std::optional<T>& option, const char* cause = nullptr) const {
    const auto* field = fields_.find(key);
    const auto value = read<T>(name, field != nullptr ? field->rules : size_rules());
    if (!value) return;
    if (option && *option != *value)
      throw ConfigError(fmt::format(
          "model.{0}: {1}{2} = {3}, but {4} says {5} = {6}; leave {0} out, or choose other weights",
          cause != nullptr ? cause : key, cause != nullptr ? "its " : "", key, *option, file_, name, *value));
    option = value;
  }
  /// For options that may differ from the weights: the user's value takes precedence.
  template <class T>
  void take_default(const char* name, const char* key, std::optional<T>& option) const {
    if (!option) take(name, key, option);
  }
  [[noreturn]] void refuse(const std::string& problem) const {
    throw ConfigError(fmt::format("model.weights: {} {}", file_, problem));
  }

 private:
  /// @throws ConfigError unless `name` is missing or is `supported`; null is Python's false
  void check_only(const std::string& name, const nlohmann::json& supported) const {
    const auto value = values_.value(name, supported);
    const bool off = supported == false || supported.empty();
    if (value != supported && !(off && value.is_null()))
      refuse(fmt::format("has {} = {}; only {} is supported", name, value.dump(), supported.dump()));
  }
  const FieldTable& fields_;
  nlohmann::json implied_ = nlohmann::json::object();
  nlohmann::json values_;
  std::string file_;
};

/// The token id of pad_token_id, whose embedding gets no gradient; -1: there is none. As in torch.nn.Embedding, a
/// negative one counts from the end. @throws ConfigError
inline std::int64_t padding_id(const HfConfig& config, std::int64_t vocab_size) {
  if (config.value("pad_token_id").is_null()) return -1;
  const auto id = config.read<std::int64_t>("pad_token_id", {});
  if (*id < -vocab_size || *id >= vocab_size)
    config.refuse(fmt::format("has pad_token_id = {}, which is none of its {} token ids", *id, vocab_size));
  return *id < 0 ? *id + vocab_size : *id;
}
/// null for -1
inline nlohmann::json stored_id(std::int64_t id) { return id < 0 ? nlohmann::json() : nlohmann::json(id); }

/// Adds id2label and label2id: the classes by number. Those without a name are called LABEL_N, as by Hugging Face. Of
/// classes with one name, id2label has all, and label2id, whose keys are the names, the last one, as transformers makes
/// it from id2label. Nothing is lost: the classes of weights are read from id2label.
inline void add_labels(nlohmann::json& config, std::int64_t classes, const std::vector<std::string>& names) {
  config["id2label"] = config["label2id"] = nlohmann::json::object();
  for (std::int64_t i = 0; i < classes; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const auto name = index < names.size() ? names[index] : fmt::format("LABEL_{}", i);
    config["id2label"][std::to_string(i)] = name;
    config["label2id"][name] = i;
  }
}

}  // namespace trireme::models
