// GPT-2 (Radford et al., 2019) with its head over the vocabulary, equal to Hugging Face's GPT2LMHeadModel; parameters
// have the same names, and files hold the weights of attention and MLP transposed, as its Conv1D layers do. The head
// has no weights of its own.
//
// Blocks: "embed", "transformer.h.0", ..., "head" (models/decoder.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/nn/hf_config.h"
#include "core/nn/model_kind.h"

namespace trireme::models::gpt2 {

/// Unset options come from the loaded weights, else from the size, else from the default. resolve() sets all of them.
struct Options {
  std::optional<std::string> size, hidden_act;
  std::optional<std::int64_t> hidden_size, num_layers, num_heads, intermediate_size, vocab_size, max_positions;
  std::optional<double> dropout, embedding_dropout, attention_dropout, layer_norm_eps, initializer_range;
};

const Fields<Options>& fields();

class Kind : public nn::ModelKindOf<Options> {
 public:
  Kind() : ModelKindOf(gpt2::fields()) {}
  [[nodiscard]] const nn::HfKeys& hf_keys() const override;
  [[nodiscard]] nn::Policy policy(const void* options) const override;
  [[nodiscard]] std::string default_task(const nn::DataSpec& /*data*/) const override { return "causal_lm"; }

 protected:
  void resolve_for(Options& options, const nn::DataSpec& data) const override;
  void read_from(Options& options, const nn::HfConfig& config) const override;
  void write_to(const Options& options, nlohmann::json& config) const override;
  [[nodiscard]] std::unique_ptr<nn::Model> make_model(const Options& options) const override;
};

}  // namespace trireme::models::gpt2
