#include "core/nn/adapt.h"

#include <utility>

#include "core/base/error.h"

namespace trireme::nn {
namespace {

class AdaptedBlock : public Block {
 public:
  AdaptedBlock(std::shared_ptr<torch::nn::Module> module, ForwardFn forward)
      : module_(register_module("module", std::move(module))), forward_(std::move(forward)) {}

  Tensors forward(Tensors inputs, const Context& context) override {
    if (module_->is_training() != context.training) module_->train(context.training);
    return forward_(std::move(inputs), context);
  }
  bool uses_torch_generators() const override { return true; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  ForwardFn forward_;
};

/// Registers the user's module in the model's tree without adding a level: its tensors and children become the model's
/// own, so names do not change.
class AdaptedModel : public Model {
 public:
  AdaptedModel(const torch::nn::Module& module, std::vector<std::shared_ptr<Block>> blocks) {
    for (const auto& item : module.named_parameters(/*recurse=*/false))
      register_parameter(item.key(), item.value(), item.value().requires_grad());
    for (const auto& item : module.named_buffers(/*recurse=*/false)) register_buffer(item.key(), item.value());
    for (const auto& item : module.named_children()) register_module(item.key(), item.value());
    for (auto& block : blocks) add_block(std::move(block));
    finish();
  }
};

}  // namespace

std::unique_ptr<Model> adapt(std::shared_ptr<torch::nn::Module> module, ForwardFn forward) {
  const auto& own = *module;
  return std::make_unique<AdaptedModel>(
      own, std::vector<std::shared_ptr<Block>>{std::make_shared<AdaptedBlock>(std::move(module), std::move(forward))});
}

std::unique_ptr<Model> adapt(const torch::nn::Sequential& sequential) {
  std::vector<std::shared_ptr<Block>> blocks;
  for (auto& child : *sequential) {
    auto forward = [any = child](Tensors inputs, const Context&) mutable {
      TRIREME_REQUIRE(inputs.size() == 1,
                      "each child of an adapted Sequential takes one tensor, but {} were given; use nn::adapt(module, "
                      "forward) with a forward function of your own",
                      inputs.size());
      return Tensors{any.forward(std::move(inputs[0]))};
    };
    blocks.push_back(std::make_shared<AdaptedBlock>(child.ptr(), std::move(forward)));
  }
  return std::make_unique<AdaptedModel>(*sequential, std::move(blocks));
}

}  // namespace trireme::nn
