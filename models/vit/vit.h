// Vision Transformer for image classification: the arithmetic and the parameter names of Hugging Face's
// ViTForImageClassification, as they stand on disk. Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.
//
// Blocks: embeddings; each encoder layer; the head (final norm and classifier). Between blocks goes one tensor
// [B, N + 1, H]: the class token, then the N patches row by row; from the last layer to the head [B, 1, H], the class
// token alone.
// Shapes: B samples, C channels, P patch side, N patches, H hidden_size, K classes.
#pragma once

#include <memory>

#include "core/nn/block.h"
#include "models/vit/options.h"

namespace trireme::models::vit {

class Vit : public nn::Model {
 public:
  /// @pre resolved options
  explicit Vit(const Options& options);
  std::int64_t tokens(const nn::Tensors& /*inputs*/) const override { return tokens_; }

 private:
  std::int64_t tokens_;  ///< the class token and the patches
};

}  // namespace trireme::models::vit
