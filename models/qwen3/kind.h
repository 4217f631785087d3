// Qwen3 (Yang et al., "Qwen3 Technical Report", 2025), the dense ones, as a ModelKind: a Llama with norms of queries
// and keys, equal to Hugging Face's Qwen3ForCausalLM.
#pragma once

#include "models/llama/kind.h"

namespace trireme::models::qwen3 {

class Kind : public llama::Kind {
 public:
  Kind();
  [[nodiscard]] const nn::HfKeys& hf_keys() const override;

 protected:
  /// transformers takes null for "num_key_value_heads" as the number of heads, and a missing key as 32.
  [[nodiscard]] nlohmann::json recognized(const nlohmann::json& config, const std::string& file) const override;
  void read_from(llama::Options& options, const nn::HfConfig& config) const override;
  void resolve_for(llama::Options& options, const nn::DataSpec& data) const override;
};

}  // namespace trireme::models::qwen3
