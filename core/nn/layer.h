// Layer: base of our modules. A layer declares its parameters (name, shape, how to draw them) and holds them on the
// meta device; memory comes later, by name, already sliced (core/nn/materialize.h). So a model that is larger than a
// rank never exists whole, and every layout starts from the same numbers.
#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "core/nn/context.h"
#include "core/shard/init.h"

namespace trireme::nn {

class Layer : public torch::nn::Module {
 public:
  struct Declared {
    std::string name;  ///< inside this layer: "weight"
    std::vector<std::int64_t> shape;
    shard::Init init;
    at::Tensor* member;
  };
  [[nodiscard]] const std::vector<Declared>& declared() const { return declared_; }

  /// Gives declared parameter `name` its memory. `value` becomes a leaf; requires_grad is kept. Any shape: the slice
  /// a rank owns may be smaller than declared.
  void place(const std::string& name, at::Tensor value);

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

}  // namespace trireme::nn
