#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/upsample_bicubic2d.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/error.h"
#include "core/nn/layers/activation.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/dropout.h"
#include "core/nn/layers/linear.h"
#include "core/nn/layers/tokens.h"
#include "models/head_block.h"
#include "models/parts.h"
#include "models/vit/kind.h"
#include "models/vit/timm.h"

namespace trireme::models::vit {
namespace {

using nn::Context;
using nn::Init;
using nn::Tensors;

/// Since its version 5, transformers' modules have other names than its files of weights: those of a state_dict() and
/// of PEFT's adapters. The second naming is of a ViTModel, which has no head and no "vit." before its names.
std::vector<nn::Naming> module_namings() {
  const std::string ours = "vit.encoder.layer.*.", theirs = "layers.*.";
  nn::Naming modules{.library = "transformers 5", .names = {}, .of_modules = true};
  nn::Naming base{.library = "transformers 5",
                  .names = {{"vit.embeddings.**", "embeddings.**"}, {"vit.layernorm.*", "layernorm.*"}}};
  for (const auto& [from, to] : {std::pair{"attention.attention.query", "attention.q_proj"},
                                 {"attention.attention.key", "attention.k_proj"},
                                 {"attention.attention.value", "attention.v_proj"},
                                 {"attention.output.dense", "attention.o_proj"},
                                 {"intermediate.dense", "mlp.fc1"},
                                 {"output.dense", "mlp.fc2"},
                                 {"layernorm_before", "layernorm_before"},
                                 {"layernorm_after", "layernorm_after"}}) {
    modules.names.push_back({ours + from, "vit." + theirs + to});
    base.names.push_back({ours + from + ".*", theirs + to + ".*"});
  }
  return {std::move(modules), std::move(base)};
}

/// The patches of an image, row by row.
struct PatchGrid {
  std::int64_t rows = 0, columns = 0;
  [[nodiscard]] std::int64_t patches() const { return rows * columns; }
  friend bool operator==(const PatchGrid&, const PatchGrid&) = default;
};
/// Pixels at the right and lower edge that fill no patch are left out.
PatchGrid grid_of(const nn::ImageSize& image, std::int64_t patch_size) {
  return {image.height / patch_size, image.width / patch_size};
}

/// Pixels [B, C, height, width] -> patches [B, N, H], for N patches and the hidden size H: a convolution whose stride
/// equals its kernel size, computed as the matrix product that it is.
class PatchProjection : public nn::Unary {
 public:
  explicit PatchProjection(const Options& options) : patch_(*options.patch_size) {
    declare("weight", weight_, {*options.hidden_size, options.channels, patch_, patch_},
            Init::normal(0, *options.initializer_range));
    declare("bias", bias_, {*options.hidden_size}, Init::zeros());
  }

 protected:
  at::Tensor compute(const at::Tensor& pixels, const Context&) override {
    const std::int64_t batch = pixels.size(0), channels = pixels.size(1);
    const auto grid = grid_of({pixels.size(2), pixels.size(3)}, patch_);
    const auto patches = pixels.view({batch, channels, grid.rows, patch_, grid.columns, patch_})
                             .permute({0, 2, 4, 1, 3, 5})
                             .reshape({batch, grid.patches(), channels * patch_ * patch_});
    return at::linear(patches, weight_.flatten(1), bias_);
  }

 private:
  std::int64_t patch_;
  at::Tensor weight_, bias_;
};

class Embeddings : public nn::Block {
 public:
  explicit Embeddings(const Options& options)
      : channels_(options.channels),
        image_size_(options.image_size),
        projection_(std::make_shared<PatchProjection>(options)),
        dropout_(std::make_shared<nn::Dropout>(*options.dropout)) {
    const auto grid = grid_of(options.image_size, *options.patch_size);
    const auto draw = Init::normal(0, *options.initializer_range);
    declare("cls_token", cls_token_, {1, 1, *options.hidden_size}, draw);
    declare("position_embeddings", positions_, {1, grid.patches() + 1, *options.hidden_size}, draw);
    submodule(*this, "patch_embeddings").register_module("projection", projection_);
    register_module("dropout", dropout_);
  }

  Tensors forward(Tensors inputs, const Context& context) override {
    auto pixels = inputs.at(0);
    const auto& [height, width] = image_size_;
    TRIREME_CHECK(
        pixels.dim() == 4 && pixels.size(1) == channels_ && pixels.size(2) == height && pixels.size(3) == width,
        "this ViT takes pixels of shape [B, {}, {}, {}], but got another shape", channels_, height, width);
    if (pixels.scalar_type() != cls_token_.scalar_type()) pixels = pixels.to(cls_token_.scalar_type());
    const auto patches = projection_->forward(pixels, context);
    const auto cls = cls_token_.expand({pixels.size(0), -1, -1});
    return {dropout_->forward(at::cat({cls, patches}, 1) + positions_, context)};
  }

 private:
  std::int64_t channels_;
  nn::ImageSize image_size_;
  std::shared_ptr<nn::Unary> projection_, dropout_;
  at::Tensor cls_token_, positions_;
};

class EncoderLayer : public nn::Block {
 public:
  EncoderLayer(const Options& options, std::int64_t index) {
    const std::int64_t hidden = *options.hidden_size, inner = *options.intermediate_size;
    const auto linear = [&](std::int64_t in, std::int64_t out, std::int64_t in_unit = 1,
                            nn::Activation activation = nn::Activation::none) {
      return std::make_shared<nn::Linear>(nn::Linear::Options{
          .in = in, .out = out, .init_std = *options.initializer_range, .in_unit = in_unit, .activation = activation});
    };
    const auto norm = [&] { return std::make_shared<nn::LayerNorm>(hidden, *options.layer_norm_eps); };
    const auto dropout = [&] { return std::make_shared<nn::Dropout>(*options.dropout); };

    auto& attention = submodule(*this, "attention");
    attention_ = attention.register_module("attention", std::make_shared<nn::SelfAttention>(nn::SelfAttention::Options{
                                                            .hidden = hidden,
                                                            .heads = *options.num_heads,
                                                            .bias = *options.qkv_bias,
                                                            .dropout = *options.attention_dropout,
                                                            .init_std = *options.initializer_range}));
    auto& attention_out = submodule(attention, "output");
    attention_out_ = attention_out.register_module("dense", linear(hidden, hidden, hidden / *options.num_heads));
    attention_out_dropout_ = attention_out.register_module("dropout", dropout());
    mlp_in_ = submodule(*this, "intermediate")
                  .register_module("dense", linear(hidden, inner, 1, nn::activation_of(*options.hidden_act)));
    auto& output = submodule(*this, "output");
    mlp_out_ = output.register_module("dense", linear(inner, hidden));
    mlp_out_dropout_ = output.register_module("dropout", dropout());
    norm_before_ = register_module("layernorm_before", norm());
    norm_after_ = register_module("layernorm_after", norm());
    const auto last = *options.num_layers - 1;
    if (*options.drop_path > 0 && index > 0) {
      const double p = *options.drop_path * static_cast<double>(index) / static_cast<double>(last);
      attention_drop_path_ = attention_out.register_module("drop_path", std::make_shared<nn::DropPath>(p));
      mlp_drop_path_ = output.register_module("drop_path", std::make_shared<nn::DropPath>(p));
    }
    if (index == last) class_token_ = register_module("class_token", std::make_shared<nn::FirstToken>());
  }

  Tensors forward(Tensors inputs, const Context& context) override {
    // The head reads only the class token. In the last layer the other tokens therefore serve only as keys and values,
    // and the rest of their computation is skipped (its gradients are exactly zero).
    const auto& all = inputs.at(0);
    const auto x = class_token_ ? class_token_->forward(all, context) : all;
    const auto query_tokens = class_token_ ? context.with_tokens(1) : context;
    const auto [h, normed] =
        norm_after_->of_sum(x, attend(all, context, query_tokens), *attention_out_dropout_, query_tokens);
    const auto inner = mlp_in_->forward(normed, query_tokens);
    const auto added = mlp_out_->forward(inner, query_tokens);
    return {
        mlp_out_dropout_->add_to(h, mlp_drop_path_ ? mlp_drop_path_->forward(added, context) : added, query_tokens)};
  }

 private:
  /// A separate function, so that the attention's intermediate tensors are freed before the MLP.
  at::Tensor attend(const at::Tensor& all, const Context& context, const Context& query_tokens) {
    const auto mixed = attention_->forward(norm_before_->forward(all, context), context, class_token_ ? 1 : 0);
    const auto added = attention_out_->forward(mixed, query_tokens);
    return attention_drop_path_ ? attention_drop_path_->forward(added, context) : added;
  }

  std::shared_ptr<nn::Unary> class_token_;  ///< only in the last layer
  std::shared_ptr<nn::SelfAttention> attention_;
  std::shared_ptr<nn::Unary> attention_out_, mlp_in_, mlp_out_, norm_before_;
  std::shared_ptr<nn::Dropout> attention_out_dropout_, mlp_out_dropout_;
  std::shared_ptr<nn::Unary> attention_drop_path_, mlp_drop_path_;  ///< null without drop path
  std::shared_ptr<nn::LayerNorm> norm_after_;
};

class Vit : public nn::Model {
 public:
  explicit Vit(const Options& options);
  std::vector<std::string> input_names() const override { return {kPixels}; }
  std::int64_t tokens(const nn::Tensors& /*inputs*/) const override { return grid_.patches() + 1; }
  /// Position embeddings for images of another size: bicubic interpolation of the patches' grid, as Hugging Face's
  /// interpolate_pos_encoding does.
  nn::Conversion conversion(const std::string& name, at::IntArrayRef from, at::IntArrayRef to) const override;
  /// timm's names, which DeiT's own files have too, and those of transformers' modules.
  std::vector<nn::Naming> namings() const override {
    auto out = module_namings();
    out.push_back(timm_naming());
    return out;
  }

 private:
  /// The grid of this many stored positions: that of the weights' config.json if it has as many, else the model's own,
  /// else a square. Unset: none of them.
  [[nodiscard]] std::optional<PatchGrid> stored_grid(std::int64_t patches) const;

  PatchGrid grid_;
  std::optional<PatchGrid> weights_grid_;  ///< by the weights' config.json
};

std::optional<PatchGrid> Vit::stored_grid(std::int64_t patches) const {
  // A config.json may only name the size that its architecture usually has, so the number of positions decides.
  if (weights_grid_ && weights_grid_->patches() == patches) return weights_grid_;
  if (grid_.patches() == patches) return grid_;
  const auto side = std::llround(std::sqrt(static_cast<double>(std::max<std::int64_t>(patches, 0))));
  return side > 0 && side * side == patches ? std::optional(PatchGrid{side, side}) : std::nullopt;
}

nn::Conversion Vit::conversion(const std::string& name, at::IntArrayRef from, at::IntArrayRef to) const {
  if (name != "vit.embeddings.position_embeddings" || from.size() != 3 || from[0] != 1 || from[2] != to[2]) return {};
  const auto stored_grid = this->stored_grid(from[1] - 1);
  if (!stored_grid || *stored_grid == grid_) return {};
  const auto interpolated = [from_grid = *stored_grid, to_grid = grid_](const at::Tensor& stored) {
    const auto type = at::promote_types(stored.scalar_type(), at::kFloat);
    const auto hidden = stored.size(2);
    const auto grid = stored.narrow(1, 1, from_grid.patches())
                          .to(type)
                          .reshape({1, from_grid.rows, from_grid.columns, hidden})
                          .permute({0, 3, 1, 2});
    const auto scaled = at::upsample_bicubic2d(grid, at::IntArrayRef({to_grid.rows, to_grid.columns}),
                                               /*align_corners=*/false, /*scale_factors=*/std::nullopt);
    return at::cat(
        {stored.narrow(1, 0, 1).to(type), scaled.permute({0, 2, 3, 1}).reshape({1, to_grid.patches(), hidden})}, 1);
  };
  return {fmt::format("interpolated from {} x {} to {} x {} patches", stored_grid->rows, stored_grid->columns,
                      grid_.rows, grid_.columns),
          interpolated};
}

Vit::Vit(const Options& options) : grid_(grid_of(options.image_size, *options.patch_size)) {
  if (options.weights_image_size) weights_grid_ = grid_of(*options.weights_image_size, *options.patch_size);
  const std::int64_t hidden = *options.hidden_size;
  auto& vit = submodule(*this, "vit");
  add_block(vit.register_module("embeddings", std::make_shared<Embeddings>(options)));
  auto& layers = submodule(submodule(vit, "encoder"), "layer");
  for (std::int64_t i = 0; i < *options.num_layers; ++i)
    add_block(layers.register_module(std::to_string(i), std::make_shared<EncoderLayer>(options, i)));
  const auto class_token = vit.register_module("class_token", std::make_shared<nn::FirstToken>());
  const auto norm = vit.register_module("layernorm", std::make_shared<nn::LayerNorm>(hidden, *options.layer_norm_eps));
  const auto classifier = register_module(
      "classifier", std::make_shared<nn::Linear>(nn::Linear::Options{
                        .in = hidden, .out = options.classes, .bias = true, .init_std = *options.initializer_range}));
  // The norm works on each token separately, so it needs only the class token.
  add_block(std::make_shared<HeadBlock>(HeadBlock::Layers{class_token, norm, classifier}));
  finish();
}

}  // namespace

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<Vit>(options); }

// The weights of embeddings and norms are full on every rank.
nn::Policy Kind::policy(const void* /*options*/) const {
  namespace role = nn::role;
  return {.tensor = {{"vit.encoder.layer.*.attention.attention", role::attention},
                     {"vit.encoder.layer.*.attention.output.dense", role::row_parallel},
                     {"vit.encoder.layer.*.intermediate.dense", role::column_parallel},
                     {"vit.encoder.layer.*.output.dense", role::row_parallel},
                     {"classifier", role::classifier_head}},
          .sequence = {{"vit.embeddings", role::whole},
                       {"vit.embeddings.patch_embeddings.projection", role::whole},
                       {"vit.embeddings.dropout", role::scatter_tokens},
                       {"vit.encoder.layer.*.layernorm_before", role::token_wise},
                       {"vit.encoder.layer.*.attention.output.dropout", role::token_wise},
                       {"vit.encoder.layer.*.layernorm_after", role::token_wise},
                       {"vit.encoder.layer.*.output.dropout", role::token_wise},
                       {"vit.encoder.layer.*.class_token", role::first_token},
                       {"vit.class_token", role::gather_tokens},
                       {"vit.layernorm", role::whole}}};
}

}  // namespace trireme::models::vit
