// The Vision Transformer as a ModelKind: its options, and conversion from and to Hugging Face's config.json.
#pragma once

#include "core/nn/model_kind.h"

namespace trireme::models::vit {

class Kind : public nn::ModelKind {
 public:
  [[nodiscard]] const FieldTable& fields() const override;
  [[nodiscard]] std::shared_ptr<void> default_options() const override;
  bool from_hf(void* options, const nlohmann::json& config, const std::string& file) const override;
  void resolve(void* options, const nn::DataSpec& data) const override;
  [[nodiscard]] std::unique_ptr<nn::Model> make(const void* options) const override;
  [[nodiscard]] nlohmann::json to_hf(const void* options) const override;
  [[nodiscard]] nn::Policy policy(const void* options) const override;
  [[nodiscard]] std::string default_task() const override { return "classification"; }
  [[nodiscard]] std::string head_prefix() const override { return "classifier."; }
};

}  // namespace trireme::models::vit
