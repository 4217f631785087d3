// A program with its own torch::nn::Module, data set, loss and training loop, which resumes from its last checkpoint:
//
//   own_loop RUN_DIR [EPOCHS]            mpirun --allow-run-as-root --oversubscribe -n 4 own_loop RUN_DIR [EPOCHS]
//
// docs/cpp.md explains it step by step.
#include <ATen/ops/tensor.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "trireme.h"

namespace nn = trireme::nn;
namespace data = trireme::data;

constexpr int kEpochs = 8;  // EPOCHS ends the program earlier; the learning rate is that of a training of 8 epochs

// Points on two rings; the ring is the class. Sample i is always the same.
class Rings : public data::Dataset {
 public:
  std::int64_t size() const override { return 600; }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t epoch, bool augment) override {
    const auto key = trireme::random::mix(trireme::random::hash("rings"), static_cast<std::uint64_t>(index));
    double angle = 2 * M_PI * trireme::random::uniform(key, 0);
    const double noise = 0.2 * trireme::random::uniform(key, 1);
    if (augment)  // rotated slightly, by another angle in each epoch
      angle += 0.1 * trireme::random::uniform(key, 2 + static_cast<std::uint64_t>(epoch));
    const double radius = (index % 2 == 0 ? 0.5 : 1.0) + noise;
    const auto point = at::tensor({radius * std::cos(angle), radius * std::sin(angle)}, at::kFloat);
    return data::Sample{{{"point", point}}, data::class_label(index % 2)};
  }
};

// Focal loss (Lin et al. 2017): samples that the model predicts confidently have less weight. A
// criterion returns the sum over the samples of the batch.
at::Tensor focal(const nn::Tensors& outputs, const data::Batch& batch) {
  const auto log_p = outputs[0].log_softmax(-1).gather(1, batch.targets["labels"].unsqueeze(1));
  return (-(1 - log_p.exp()).square() * log_p).sum();
}

int train(trireme::comm::World& world, const std::string& dir, std::int64_t epochs) {
  const trireme::BoostOptions options{
      .train = {.epochs = kEpochs, .global_batch = 48, .micro_batch = 12, .max_norm = 1.0},
      .optimizer = {.lr = 1e-2, .weight_decay = 0.01, .no_decay = {"bias"}},
      .lr_schedule = {.warmup_ratio = 0.1, .curve = trireme::optim::cosine()},
      .seed = 7};
  trireme::plugins::LowLevelZeroOptions zero;
  zero.stage = 2;
  zero.norm_type = "inf";
  trireme::Booster booster(world, trireme::load_plugin(zero), options);

  at::manual_seed(options.seed);  // LibTorch's layers draw their weights in their constructors
  torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::GELU(), torch::nn::Linear(32, 32), torch::nn::GELU(),
                            torch::nn::Linear(32, 2));
  const auto rings = std::make_shared<Rings>();
  auto run = booster.boost({.source = {.model = nn::adapt(net)}, .task = trireme::task_of(focal), .data = rings});

  const trireme::OutputFolder output(dir, world.rank());
  if (run.load(dir)) booster.log().note("goes on after step {}", run.step);
  for (const auto epoch : run.epochs(epochs)) {
    at::Tensor loss;
    for (const auto& batch : epoch) loss = run.train_step(batch).loss;
    booster.log().note("epoch {}  loss {:.12f}", epoch.number() + 1, loss.item<double>());
    run.save(dir);
  }

  const auto task = trireme::tasks::classification();
  const auto score = trireme::train::evaluate(run, *run.evaluation_loader(rings, 60), task.get());
  booster.log().note("accuracy {:.1f} %", 100 * score.value("accuracy"));
  return 0;
}

int main(int argc, char** argv) {
  return trireme::run_program("own_loop", [&](trireme::comm::World& world) {
    if (argc < 2 || argc > 3) throw trireme::ConfigError("usage: own_loop RUN_DIR [EPOCHS]");
    return train(world, argv[1], argc == 3 ? trireme::integer_argument("EPOCHS", argv[2], 1, kEpochs) : kEpochs);
  });
}
