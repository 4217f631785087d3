// Llama as a ModelKind, and the base of the kinds that are built as it is.
#pragma once

#include "core/nn/hf_config.h"
#include "core/nn/model_kind.h"
#include "models/llama/options.h"

namespace trireme::models::llama {

class Kind : public nn::ModelKindOf<Options> {
 public:
  Kind() : ModelKindOf(llama::fields()) {}
  [[nodiscard]] const nn::HfKeys& hf_keys() const override;
  [[nodiscard]] nn::Policy policy(const void* options) const override;
  [[nodiscard]] std::string default_task(const nn::DataSpec& /*data*/) const override { return "causal_lm"; }

 protected:
  using ModelKindOf::ModelKindOf;
  [[nodiscard]] nlohmann::json recognized(const nlohmann::json& config, const std::string& file) const override;
  void read_from(Options& options, const nn::HfConfig& config) const override;
  void write_to(const Options& options, nlohmann::json& config) const override;
  void resolve_for(Options& options, const nn::DataSpec& data) const override { resolve_with(fields(), options, data); }
  [[nodiscard]] std::unique_ptr<nn::Model> make_model(const Options& options) const override;
};

}  // namespace trireme::models::llama
