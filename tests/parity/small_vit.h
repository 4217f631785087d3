// A small ViT for the samples of make_data(), as a user names it.
#pragma once

#include <memory>
#include <optional>

#include "core/data/dataset.h"
#include "models/registry.h"
#include "models/vit/kind.h"

namespace trireme::tests {

class SmallVit {
 public:
  explicit SmallVit(data::Dataset& data, std::optional<double> dropout = {}) : kind_(models::all_models().at("vit")) {
    options_.hidden_size = 24;
    options_.num_layers = 2;
    options_.num_heads = 3;
    options_.intermediate_size = 48;
    options_.patch_size = 4;
    options_.dropout = dropout;
    kind_->resolve(&options_, data.spec());
  }
  [[nodiscard]] ModelSource source() const {
    return {.model = kind_->make(&options_), .policy = kind_->policy(&options_)};
  }
  [[nodiscard]] std::shared_ptr<nn::Model> make() const { return kind_->make(&options_); }

 private:
  std::shared_ptr<const nn::ModelKind> kind_;
  models::vit::Options options_;
};

}  // namespace trireme::tests
