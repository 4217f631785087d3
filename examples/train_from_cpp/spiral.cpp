// A user's own training program: a small network classifies points on three spiral arms. Data, model and loop are
// defined here; Trireme provides the ranks, gradient reduction, mixed precision and the optimizer. The losses that it
// prints are the same on any number of ranks:
//
//   spiral            mpirun --allow-run-as-root --oversubscribe -n 4 spiral
#include <ATen/ops/gelu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <memory>
#include <optional>

#include "trireme.h"

namespace nn = trireme::nn;
namespace data = trireme::data;

// 900 points: sample i is on arm i % 3. A data set returns samples by index, from any thread.
class Spirals : public data::Dataset {
 public:
  std::int64_t size() const override { return 900; }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t, bool) override {
    const auto arm = index % 3;
    const double along = 0.1 + 0.9 * static_cast<double>(index) / static_cast<double>(size());
    const double angle = 5.0 * along + 2.0943951 * static_cast<double>(arm) + 0.15 * std::sin(12.9898 * index);
    const auto point = at::tensor({along * std::cos(angle), along * std::sin(angle)}, at::kFloat);
    return data::Sample{{{"point", point}}, data::class_label(arm)};
  }
};

// A model is a list of blocks; each block has one forward function. Parameters belong to layers that declare them.
class Hidden : public nn::Block {
 public:
  Hidden(std::int64_t in, std::int64_t out)
      : linear_(register_module(
            "linear", std::make_shared<nn::Linear>(nn::Linear::Options{.in = in, .out = out, .init_std = 0.5}))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {at::gelu(linear_->forward(inputs[0], context))};
  }

 private:
  std::shared_ptr<nn::Linear> linear_;
};

class Head : public nn::Block {
 public:
  explicit Head(std::int64_t in)
      : linear_(register_module("linear", std::make_shared<nn::Linear>(nn::Linear::Options{.in = in, .out = 3}))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {linear_->forward(inputs[0], context)};
  }

 private:
  std::shared_ptr<nn::Linear> linear_;
};

class Net : public nn::Model {
 public:
  Net() {
    add_block(register_module("first", std::make_shared<Hidden>(2, 32)));
    add_block(register_module("second", std::make_shared<Hidden>(32, 32)));
    add_block(register_module("head", std::make_shared<Head>(32)));
    finish();
  }
};

int train(trireme::comm::World& world) {
  trireme::Booster booster(world, trireme::load_plugin(trireme::plugins::TorchDdpOptions{}),
                           {.train = {.epochs = 20, .global_batch = 60, .micro_batch = 30},
                            .optimizer = {.lr = 1e-2},
                            .lr_schedule = {.curve = trireme::optim::cosine()},
                            .seed = 42});
  const auto points = std::make_shared<Spirals>();
  auto run = booster.boost(
      {.source = {.model = std::make_shared<Net>()}, .task = trireme::tasks::classification(), .data = points});

  for (const auto epoch : run.epochs()) {
    at::Tensor loss;
    for (const auto& batch : epoch) loss = run.train_step(batch).loss;
    booster.log().note("epoch {:2}  loss {:.6f}", epoch.number() + 1, loss.item<double>());
  }

  // Each rank has its own share of the points: count the correct ones and sum over the ranks.
  run.model->train(false);
  auto right = at::zeros({1}, at::TensorOptions(at::kLong).device(world.device()));
  const auto test = run.evaluation_loader(points, 90);
  test->start_epoch(0);
  while (const auto step = test->next())
    for (const auto& batch : step->micro)
      right += run.model->forward(batch)[0].argmax(-1).eq(batch.targets["labels"]).sum();
  booster.data_group().all_reduce(right);
  const double accuracy = static_cast<double>(right.item<std::int64_t>()) / static_cast<double>(points->size());
  booster.log().note("accuracy {:.1f} %", 100 * accuracy);
  return accuracy > 0.95 ? 0 : 1;
}

int main() { return trireme::run_program("spiral", train); }
