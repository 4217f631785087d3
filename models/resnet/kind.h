// ResNet as a ModelKind: its options, and conversion from and to the config.json that timm writes.
#pragma once

#include "core/nn/hf_config.h"
#include "core/nn/model_kind.h"
#include "models/resnet/options.h"

namespace trireme::models::resnet {

/// torchvision's weights have no config.json: [model] depth then says what they are.
class Kind : public nn::ModelKindOf<Options> {
 public:
  Kind() : ModelKindOf(resnet::fields()) {}
  [[nodiscard]] std::string default_task(const nn::DataSpec& /*data*/) const override { return "classification"; }
  [[nodiscard]] std::string head_prefix() const override { return "fc."; }

 protected:
  [[nodiscard]] nlohmann::json recognized(const nlohmann::json& config, const std::string& file) const override;
  void read_from(Options& options, const nn::HfConfig& config) const override;
  void write_to(const Options& options, nlohmann::json& config) const override;
  void resolve_for(Options& options, const nn::DataSpec& data) const override { resnet::resolve(options, data); }
  [[nodiscard]] std::unique_ptr<nn::Model> make_model(const Options& options) const override;
};

}  // namespace trireme::models::resnet
