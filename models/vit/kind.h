// The Vision Transformer as a ModelKind: its options, and conversion from and to Hugging Face's config.json.
#pragma once

#include "core/nn/hf_config.h"
#include "core/nn/model_kind.h"
#include "models/vit/options.h"

namespace trireme::models::vit {

class Kind : public nn::ModelKindOf<Options> {
 public:
  Kind() : ModelKindOf(vit::fields()) {}
  [[nodiscard]] const nn::HfKeys& hf_keys() const override;
  [[nodiscard]] nn::Policy policy(const void* options) const override;
  [[nodiscard]] std::string default_task(const nn::DataSpec& /*data*/) const override { return "classification"; }
  [[nodiscard]] std::string head_prefix() const override { return "classifier."; }

 protected:
  [[nodiscard]] nlohmann::json recognized(const nlohmann::json& config, const std::string& file) const override;
  void resolve_for(Options& options, const nn::DataSpec& data) const override { vit::resolve(options, data); }
  void read_from(Options& options, const nn::HfConfig& config) const override;
  void write_to(const Options& options, nlohmann::json& config) const override;
  [[nodiscard]] std::unique_ptr<nn::Model> make_model(const Options& options) const override;
};

}  // namespace trireme::models::vit
