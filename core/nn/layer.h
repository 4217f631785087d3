// Layer: base of our modules. A layer declares its parameters (name, shape, how to draw them) and holds them on the
// meta device; memory comes later, by name, already sliced (core/nn/parameters.h). So a model that is larger than a
// rank never exists whole, and every layout starts from the same numbers.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/nn/context.h"
#include "core/shard/init.h"

namespace trireme::nn {

using shard::Init;

class Layer : public torch::nn::Module {
 public:
  Layer() = default;
  // A declared parameter knows the address of its member: layers stay where they are made, behind a shared_ptr.
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  struct Declared {
    std::string name;  ///< inside this layer: "weight"
    std::vector<std::int64_t> shape;
    shard::Init init;
    at::Tensor* member;
    std::optional<shard::Placement> placement;  ///< the slice that place() was told of; unset: the whole
  };
  [[nodiscard]] const std::vector<Declared>& declared() const { return declared_; }

  /// Gives declared parameter `name` its memory. `value` becomes a leaf; requires_grad is kept. Any shape: the slice
  /// a rank owns may be smaller than declared, and `placement` then says which slice it is.
  void place(const std::string& name, at::Tensor value, std::optional<shard::Placement> placement = {});

  /// The layer's name inside the model ("vit.encoder.layer.0"), set by Model::finish(). Keys the dropout masks.
  [[nodiscard]] const std::string& path() const { return path_; }
  void set_path(std::string path) { path_ = std::move(path); }

 protected:
  /// For constructors: `member` is the layer's own handle to the tensor.
  void declare(const std::string& name, at::Tensor& member, std::vector<std::int64_t> shape, shard::Init init);

 private:
  std::vector<Declared> declared_;
  std::string path_;
};

/// A layer that turns one tensor into another: what models hold (Linear, LayerNorm, Dropout), so that a parallel
/// policy can put its own in the same place.
class Unary : public Layer {
 public:
  virtual at::Tensor forward(const at::Tensor& x, const Context& context) = 0;
};

}  // namespace trireme::nn
