// BERT as a ModelKind: its options, and conversion from and to Hugging Face's config.json.
#pragma once

#include "core/nn/model_kind.h"
#include "models/bert/options.h"
#include "models/hf_config.h"

namespace trireme::models::bert {

const HfKeys& hf_keys();

class Kind : public nn::ModelKindOf<Options> {
 public:
  Kind() : ModelKindOf(bert::fields()) {}
  bool from_hf(void* options, const nlohmann::json& config, const std::string& file) const override;
  [[nodiscard]] nlohmann::json to_hf(const void* options) const override;
  [[nodiscard]] nn::Policy policy(const void* options) const override;
  [[nodiscard]] std::string default_task(const nn::DataSpec& data) const override;
  [[nodiscard]] std::string head_prefix() const override { return "classifier."; }

 protected:
  void resolve_for(Options& options, const nn::DataSpec& data) const override { bert::resolve(options, data); }
  [[nodiscard]] std::unique_ptr<nn::Model> make_model(const Options& options) const override;
};

}  // namespace trireme::models::bert
