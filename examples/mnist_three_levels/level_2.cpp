// Level 2: the loop is the program's, and Accelerator runs it on one process or on many, under any plugin.
//
//   mnist_level_2 FOLDER [fp32|bf16|fp64] [PLUGIN] [RANKS]
//   mpirun --allow-run-as-root --oversubscribe -n 2 mnist_level_2 FOLDER bf16 low_level_zero
//
// FOLDER has MNIST's four files. With RANKS, the program starts the ranks itself; else a launcher does, or it is alone.
// The weights are written to runs/mnist_level_2, in place of earlier ones.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adamw.h>

#include "net.h"

int train(trireme::comm::World& world, const std::string& folder, const std::string& precision,
          const std::string& plugin) {
  trireme::Accelerator accelerator(
      world, {.plugin = plugin, .mixed_precision = precision, .seed = kSeed, .split_batches = true});
  const auto mnist = open_mnist(folder);
  BasicNet net;
  auto [model, optimizer, train_loader, test_loader] = accelerator.prepare(
      net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-3).weight_decay(0.01)),
      trireme::DataLoaderOptions{.dataset = mnist.train, .batch_size = kBatch, .shuffle = true},
      trireme::DataLoaderOptions{.dataset = mnist.validation, .batch_size = 500});
  // A folder that cannot be written is an error now, not after the training.
  const trireme::OutputFolder output("runs/mnist_level_2", world.rank());

  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    auto loss_sum = at::zeros({}, at::TensorOptions(at::kDouble).device(accelerator.device()));
    model.train();
    for (const auto& batch : train_loader) {
      const auto loss = at::cross_entropy_loss(model(batch), batch.targets["labels"]);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      loss_sum += loss.detach() * train_loader.local_samples();
    }

    std::int64_t hits = 0;
    model.eval();
    const at::NoGradGuard no_grad;
    for (const auto& batch : test_loader) {
      const auto right = model(batch).argmax(-1).eq(batch.targets["labels"]);
      hits += accelerator.gather_for_metrics(right).sum().item<std::int64_t>();
    }
    const auto loss = accelerator.reduce(loss_sum).item<double>() / static_cast<double>(train_loader.samples());
    accelerator.print("{}",
                      result(epoch, loss, static_cast<double>(hits) / static_cast<double>(test_loader.samples())));
  }
  accelerator.save_model(model, output.path());
  return 0;
}

int main(int argc, char** argv) {
  const auto run = [&](trireme::comm::World& world) {
    if (argc < 2 || argc > 5)
      throw trireme::ConfigError("usage: mnist_level_2 FOLDER [fp32|bf16|fp64] [PLUGIN] [RANKS]");
    return train(world, argv[1], argc > 2 ? argv[2] : "fp32", argc > 3 ? argv[3] : "torch_ddp");
  };
  if (argc != 5) return trireme::run_program("mnist_level_2", run);
  return trireme::run_program("mnist_level_2", [&] {
    trireme::spawn(trireme::integer_argument("RANKS", argv[4]), [&](trireme::comm::World& world) { run(world); });
    return 0;
  });
}
