// Vision Transformer for image classification, with the arithmetic and the stored parameter names of Hugging Face's
// ViTForImageClassification. Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.
//
// Blocks: embeddings; each encoder layer; the head (final norm and classifier). One tensor [B, N + 1, H] passes between
// blocks: the class token, then the N patches row by row. From the last layer to the head it is [B, 1, H], with only
// the class token.
// Shapes: B samples, C channels, P patch side, N patches, H hidden_size, K classes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/nn/block.h"
#include "models/vit/options.h"

namespace trireme::models::vit {

class Vit : public nn::Model {
 public:
  /// @pre options are resolved
  explicit Vit(const Options& options);
  std::vector<std::string> input_names() const override { return {kPixels}; }
  std::int64_t tokens(const nn::Tensors& /*inputs*/) const override { return grid_.patches() + 1; }
  /// Position embeddings for images of another size: bicubic interpolation of the patches' grid, as Hugging Face's
  /// interpolate_pos_encoding does.
  nn::Conversion conversion(const std::string& name, at::IntArrayRef from, at::IntArrayRef to) const override;
  /// timm's names, which DeiT's own files have too.
  std::vector<nn::Naming> namings() const override;

 private:
  /// The grid of this many stored positions: that of the weights' config.json if it has as many, else the model's own,
  /// else a square. Unset: none of them.
  [[nodiscard]] std::optional<PatchGrid> stored_grid(std::int64_t patches) const;

  PatchGrid grid_;
  std::optional<PatchGrid> weights_grid_;  ///< by the weights' config.json
};

}  // namespace trireme::models::vit
