// ResNet as a ModelKind: its options, and conversion from and to the config.json that timm writes.
#pragma once

#include "core/nn/model_kind.h"
#include "models/resnet/options.h"

namespace trireme::models::resnet {

/// torchvision's weights have no config.json: [model] depth then says what they are.
class Kind : public nn::ModelKindOf<Options> {
 public:
  Kind() : ModelKindOf(resnet::fields()) {}
  bool from_hf(void* options, const nlohmann::json& config, const std::string& file) const override;
  [[nodiscard]] nlohmann::json to_hf(const void* options) const override;
  [[nodiscard]] std::string default_task(const nn::DataSpec& /*data*/) const override { return "classification"; }
  [[nodiscard]] std::string head_prefix() const override { return "fc."; }

 protected:
  void resolve_for(Options& options, const nn::DataSpec& data) const override { resnet::resolve(options, data); }
  [[nodiscard]] std::unique_ptr<nn::Model> make_model(const Options& options) const override;
};

}  // namespace trireme::models::resnet
