// Inputs of recomputed blocks in other memory between the passes: same gradients, released in time. On CPU tensors; the
// streams of a GPU are tested in tests/gpu.
#include "core/nn/autograd/activation_offload.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "core/nn/autograd/recompute.h"
#include "core/nn/block.h"
#include "core/nn/layers/linear.h"
#include "core/nn/parameters.h"

namespace trireme::nn {
namespace {

/// Passes on an integer tensor besides.
struct TanhBlock : Block {
  explicit TanhBlock(bool changes) : in_place(changes) {
    linear = register_module("linear", std::make_shared<Linear>(Linear::Options{.in = 8, .out = 8, .init_std = 0.5}));
  }
  Tensors forward(Tensors in, const Context& context) override {
    auto x = in.at(0);
    if (in_place) x = x.add_(1);
    return {linear->forward(x, context).tanh() * in.at(1), in.at(1) + 1};
  }
  bool in_place;
  std::shared_ptr<Linear> linear;
};

struct ThreeBlocks : Model {
  explicit ThreeBlocks(bool in_place = false) {
    for (const auto* name : {"a", "b", "c"})
      add_block(register_module(name, std::make_shared<TanhBlock>(in_place && *name == 'b')));
    finish();
    materialize(*this, 3, at::kDouble, at::kCPU);
  }
};

/// Counts the inputs of blocks that still have memory.
struct Watched {
  explicit Watched(std::shared_ptr<ActivationOffload> to) : offload(std::move(to)) {}
  Tensors operator()(const std::shared_ptr<Block>& block, Tensors inputs, const Context& context) {
    seen.push_back(inputs.at(0).storage().getWeakStorageImpl());
    auto function = recomputable(block, context);
    function.offload = offload;
    return run_recomputable(std::move(function), std::move(inputs));
  }
  [[nodiscard]] std::int64_t alive() const {
    return std::count_if(seen.begin(), seen.end(), [](const auto& storage) { return !storage.expired(); });
  }
  std::shared_ptr<ActivationOffload> offload;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> seen;
};

Tensors inputs_of(const at::Tensor& x) { return {x + 1, at::tensor(std::vector<std::int64_t>{2})}; }

std::vector<at::Tensor> gradients_of(ThreeBlocks& model) {
  std::vector<at::Tensor> out;
  for (auto& p : parameters(model)) out.push_back(p.value.grad().clone());
  return out;
}

TEST(ActivationOffload, HasTheGradientsOfThePlainPassInEveryOrderOfMicrobatches) {
  const std::vector<at::Tensor> x{at::rand({4, 8}, at::kDouble), at::rand({4, 8}, at::kDouble)};
  ThreeBlocks plain;
  for (const auto& each : x) plain.forward(inputs_of(each), {}).at(0).square().sum().backward();
  for (const std::vector<int>& order : {std::vector{0, 1}, {1, 0}}) {
    ThreeBlocks model;
    Watched run(std::make_shared<ActivationOffload>(at::kCPU));
    std::vector<at::Tensor> losses;
    for (const auto& each : x) losses.push_back(model.forward(inputs_of(each), {}, std::ref(run)).at(0).square().sum());
    for (const int i : order) losses[static_cast<std::size_t>(i)].backward();
    const auto expected = gradients_of(plain), got = gradients_of(model);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_LT((got[i] - expected[i]).abs().max().item<double>(), 1e-12) << i;  // sums of two in another order
  }
}

TEST(ActivationOffload, ReleasesAllInputsButTheLast) {
  ThreeBlocks model;
  const auto x = at::rand({4, 8}, at::kDouble);
  for (const bool moves : {false, true}) {
    Watched run(moves ? std::make_shared<ActivationOffload>(at::kCPU) : nullptr);
    const auto loss = model.forward(inputs_of(x), {}, std::ref(run)).at(0).sum();
    EXPECT_EQ(run.alive(), moves ? 1 : 3);
    loss.backward({}, /*retain_graph=*/true);
    const auto once = gradients_of(model);
    for (auto& p : parameters(model)) p.value.mutable_grad().reset();
    loss.backward();  // what was moved can be restored again
    const auto twice = gradients_of(model);
    for (std::size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(at::equal(once[i], twice[i])) << i;
    for (auto& p : parameters(model)) p.value.mutable_grad().reset();
  }
}

TEST(ActivationOffload, AChangedInputIsRefused) {
  ThreeBlocks model(/*in_place=*/true);
  Watched run(std::make_shared<ActivationOffload>(at::kCPU));
  const auto loss = model.forward(inputs_of(at::rand({4, 8}, at::kDouble)), {}, std::ref(run)).at(0).sum();
  try {
    loss.backward();
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("a block's input was changed in place after it was saved for recompute"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace trireme::nn
