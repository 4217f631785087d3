// Llama (Touvron et al., 2023) with its head over the vocabulary, equal to Hugging Face's LlamaForCausalLM, and the
// base of the kinds that are built as it is; parameters have the same names. A tied head has none of its own. With
// Options::query_key_norm it is Qwen3ForCausalLM.
//
// Blocks: "embed", "model.layers.0", ..., "head" (models/decoder.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/nn/hf_config.h"
#include "core/nn/layers/rotary_scaling.h"
#include "core/nn/model_kind.h"

namespace trireme::models::llama {

/// Unset options come from the loaded weights, else from the size, else from the default. resolve() sets all of them.
struct Options {
  std::optional<std::string> size, hidden_act;
  std::optional<std::int64_t> hidden_size, num_layers, num_heads, num_key_value_heads, head_size, intermediate_size;
  std::optional<std::int64_t> vocab_size, max_positions;
  std::optional<double> attention_dropout, rms_norm_eps, rope_theta, initializer_range;
  std::optional<bool> tied, attention_bias, mlp_bias;

  // Set from the kind, the loaded weights and the data; not keys of [model].
  bool query_key_norm = false;
  std::int64_t padding_id = -1;
  nn::RotaryScaling rope;
  std::int64_t longest = 0;  ///< the most tokens of a sample
};

/// What the tables of these models differ in.
struct Variant {
  std::string name, text;
  std::string size_text;                                    ///< what the key `size` says besides its values
  Presets presets;                                          ///< without key
  std::vector<std::pair<std::string, FieldValue>> implied;  ///< by config.json without the key, as in transformers
};
Fields<Options> fields_of(Variant variant);

/// Llama's.
const Fields<Options>& fields();

class Kind : public nn::ModelKindOf<Options> {
 public:
  Kind() : ModelKindOf(llama::fields()) {}
  [[nodiscard]] const nn::HfKeys& hf_keys() const override;
  [[nodiscard]] nn::Policy policy(const void* options) const override;
  [[nodiscard]] std::string default_task(const nn::DataSpec& /*data*/) const override { return "causal_lm"; }

 protected:
  using ModelKindOf::ModelKindOf;
  [[nodiscard]] nlohmann::json recognized(const nlohmann::json& config, const std::string& file) const override;
  void resolve_for(Options& options, const nn::DataSpec& data) const override;
  void read_from(Options& options, const nn::HfConfig& config) const override;
  void write_to(const Options& options, nlohmann::json& config) const override;
  [[nodiscard]] std::unique_ptr<nn::Model> make_model(const Options& options) const override;
};

}  // namespace trireme::models::llama
