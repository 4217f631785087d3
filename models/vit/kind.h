// Vision Transformer for image classification, with the arithmetic and the stored parameter names of Hugging Face's
// ViTForImageClassification. Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.
//
// Blocks: embeddings; each encoder layer; the head (final norm and classifier). One tensor [B, N + 1, H] passes between
// blocks: the class token, then the N patches row by row. From the last layer to the head it is [B, 1, H], with only
// the class token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/nn/hf_config.h"
#include "core/nn/layers/image_size.h"
#include "core/nn/model_kind.h"
#include "models/parts.h"

namespace trireme::models::vit {

/// Unset options come from the loaded weights, else from the size, else from the default. resolve() sets all of them.
struct Options {
  std::optional<std::string> size, hidden_act;
  std::optional<std::int64_t> hidden_size, num_layers, num_heads, intermediate_size, patch_size;
  std::optional<double> dropout, attention_dropout, drop_path, layer_norm_eps, initializer_range;
  std::optional<bool> qkv_bias;

  // Set from the data; not keys of [model].
  std::int64_t channels = 3, classes = 0;
  nn::ImageSize image_size;
  std::vector<std::string> class_names;
  // What the config.json of the loaded weights says of the images that they are for.
  std::optional<std::int64_t> weights_channels;
  std::optional<nn::ImageSize> weights_image_size;
};

const Fields<Options>& fields();

class Kind : public nn::ModelKindOf<Options> {
 public:
  Kind() : ModelKindOf(vit::fields()) {}
  [[nodiscard]] const nn::HfKeys& hf_keys() const override;
  [[nodiscard]] nn::Policy policy(const void* options) const override;
  [[nodiscard]] std::string default_task(const nn::DataSpec& data) const override { return task_of_labels(data); }
  [[nodiscard]] std::vector<nn::OtherFormat> other_formats() const override;
  [[nodiscard]] std::string head_prefix() const override { return "classifier."; }

 protected:
  [[nodiscard]] nlohmann::json recognized(const nlohmann::json& config, const std::string& file) const override;
  void resolve_for(Options& options, const nn::DataSpec& data) const override;
  void read_from(Options& options, const nn::HfConfig& config) const override;
  void write_to(const Options& options, nlohmann::json& config) const override;
  [[nodiscard]] std::unique_ptr<nn::Model> make_model(const Options& options) const override;
};

}  // namespace trireme::models::vit
