// One call before the loop makes a training faster and keeps what it computes. First a module of torch::nn in a loop of
// its own, then a model under a plugin, on any number of ranks:
//
//   optimize          trireme launch -n 2 optimize          optimize bf16
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <optional>
#include <string>

#include "trireme.h"

namespace nn = trireme::nn;
namespace data = trireme::data;
namespace tune = trireme::tune;

// Before data parallelism: a module, its inputs and its loss.
void train_module(const trireme::Log& log) {
  at::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).stride(2)), torch::nn::SiLU(),
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).stride(2)), torch::nn::SiLU(),
                              torch::nn::Flatten(), torch::nn::Linear(32 * 7 * 7, 10));
  const auto images = at::randn({32, 3, 32, 32}), labels = at::randint(10, {32});
  const auto loss_of = [&](const std::vector<at::Tensor>& inputs) {
    return at::cross_entropy_loss(model->forward(inputs[0]), inputs[1]);
  };
  const auto tuning = tune::optimize(*model, {images, labels}, loss_of);
  log.note("module   {}", tuning.line());

  torch::optim::SGD optimizer(model->parameters(), 0.05);
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const auto loss = loss_of({images, labels});
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  log.note("module   loss {:.4f}, after 20 steps {:.4f}", first, last);
}

// 1000 points with their distance from the origin in classes.
class Points : public data::Dataset {
 public:
  std::int64_t size() const override { return 1000; }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t, bool) override {
    at::Tensor point = at::empty({64});
    for (int i = 0; i < 64; ++i) point[i] = std::sin(static_cast<double>((index + 1) * (i + 3))) / (1.0 + index % 4);
    return data::Sample{{{"point", point}}, data::class_label(index % 4)};
  }
};

class Dense : public nn::Block {
 public:
  Dense(std::int64_t in, std::int64_t out, bool last)
      : linear_(register_module("linear", std::make_shared<nn::Linear>(nn::Linear::Options{.in = in, .out = out}))),
        last_(last) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    const auto made = linear_->forward(inputs[0], context);
    return {last_ ? made : at::silu(made)};
  }

 private:
  std::shared_ptr<nn::Linear> linear_;
  bool last_;
};

class Net : public nn::Model {
 public:
  Net() {
    add_block(register_module("first", std::make_shared<Dense>(64, 256, false)));
    add_block(register_module("second", std::make_shared<Dense>(256, 256, false)));
    add_block(register_module("head", std::make_shared<Dense>(256, 4, true)));
    finish();
  }
};

// Under a plugin: the step is the whole one, with its reduction over the ranks and its update.
int train(trireme::comm::World& world, const std::string& precision) {
  const trireme::Log log(world.rank());
  if (world.size() == 1) train_module(log);
  const trireme::BoostOptions options{.train = {.epochs = 3, .global_batch = 64, .precision = precision},
                                      .optimizer = {.lr = 1e-2}};
  const auto plugin = [] { return trireme::load_plugin(trireme::plugins::TorchDdpOptions{}); };
  const auto inputs = [] {
    return trireme::BoostInputs{.source = {.model = std::make_shared<Net>()},
                                .task = trireme::tasks::classification(),
                                .data = std::make_shared<Points>()};
  };
  trireme::Booster booster(world, plugin(), options);
  auto run = booster.boost(inputs());

  bool tuned = false;
  for (const auto epoch : run.epochs()) {
    at::Tensor loss;
    for (const auto& batch : epoch) {
      if (!std::exchange(tuned, true)) {
        const auto twin = [&] { return tune::make_twin(world, plugin(), options, inputs()); };
        const auto tuning = tune::optimize(run, batch, {.twin = twin});
        log.note("{}\nboosted  {}", tuning.table(), tuning.line());
      }
      loss = run.train_step(batch).loss;
    }
    log.note("epoch {}  loss {:.4f}", epoch.number() + 1, loss.item<double>());
  }
  return 0;
}

int main(int argc, char** argv) {
  const std::string precision = argc > 1 ? argv[1] : "fp32";
  return trireme::run_program("optimize", [&](trireme::comm::World& world) { return train(world, precision); });
}
