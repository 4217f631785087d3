// Level 3: a Trainer with arguments; the program has no loop.
//
//   mnist_level_3 FOLDER [fp32|bf16|fp64] [PLUGIN]
//   mpirun --allow-run-as-root --oversubscribe -n 2 mnist_level_3 FOLDER
//
// FOLDER has MNIST's four files. The run's folder is runs/mnist_level_3.
#include "net.h"

namespace train = trireme::train;

int run(trireme::comm::World& world, const std::string& folder, const std::string& precision,
        const std::string& plugin) {
  if (kBatch % world.size() != 0)
    throw trireme::ConfigError(fmt::format("each rank needs as many samples: start a number that divides {}", kBatch));
  const auto mnist = open_mnist(folder);
  train::Trainer trainer(world,
                         {.output_dir = "runs/mnist_level_3",
                          .plugin = plugin,
                          .per_device_train_batch_size = kBatch / world.size(),
                          .per_device_eval_batch_size = 500,
                          .num_train_epochs = kEpochs,
                          .precision = precision,
                          .max_grad_norm = 0,
                          .learning_rate = 1e-3,
                          .weight_decay = 0.01,
                          .lr_scheduler = trireme::optim::constant(),
                          .save_strategy = train::Strategy::no,
                          .seed = static_cast<std::int64_t>(kSeed)},
                         {.model = [] { return trireme::model_source(BasicNet()); },
                          .task = trireme::tasks::classification({.data = mnist.info.spec, .topk = 1}),
                          .train = mnist.train,
                          .eval = mnist.validation});
  trainer.train();
  return 0;
}

int main(int argc, char** argv) {
  return trireme::run_program("mnist_level_3", [&](trireme::comm::World& world) {
    if (argc < 2 || argc > 4) throw trireme::ConfigError("usage: mnist_level_3 FOLDER [fp32|bf16|fp64] [PLUGIN]");
    return run(world, argv[1], argc > 2 ? argv[2] : "fp32", argc > 3 ? argv[3] : "torch_ddp");
  });
}
