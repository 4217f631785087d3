// Level 1: the parallel pieces by hand. Each rank has the whole network and a part of every batch.
//
//   mnist_level_1 FOLDER [fp32|fp64]      mpirun --allow-run-as-root --oversubscribe -n 2 mnist_level_1 FOLDER
//
// FOLDER has MNIST's four files. The weights are written to runs/mnist_level_1, in place of earlier ones.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "net.h"

namespace comm = trireme::comm;

// Some samples as one batch on this rank's device.
struct Batch {
  at::Tensor images, labels, ids;
};
Batch read(data::Dataset& set, const trireme::DistributedSampler& sampler, std::int64_t begin, std::int64_t size,
           bool augment, at::TensorOptions options) {
  std::vector<data::Sample> samples;
  const std::vector<std::int64_t> indices(sampler.begin() + begin,
                                          sampler.begin() + std::min(begin + size, sampler.size()));
  for (const auto index : indices) samples.push_back(*set.get(index, sampler.epoch(), augment));
  const auto batch = set.collate(std::move(samples), indices);
  return {batch.inputs["pixel_values"].to(options), batch.targets["labels"].to(options.device()), at::tensor(indices)};
}

double evaluate(BasicNet& net, data::Dataset& test_set, const comm::World& world, at::TensorOptions options) {
  const at::NoGradGuard no_grad;
  net->eval();
  const trireme::DistributedSampler sampler(test_set.size(), world.size(), world.rank(), {.shuffle = false});
  const auto hits = at::zeros({}, at::TensorOptions(at::kLong).device(world.device()));
  for (std::int64_t begin = 0; begin < sampler.size(); begin += 500) {
    const auto batch = read(test_set, sampler, begin, 500, false, options);
    hits.add_(net->forward(batch.images, {}).argmax(-1).eq(batch.labels).sum());
  }
  world.group().all_reduce(hits);
  return hits.item<double>() / static_cast<double>(test_set.size());
}

void save(const torch::nn::Module& net, const std::string& folder) {
  std::vector<trireme::checkpoint::NamedValue> weights;
  for (const auto& item : net.named_parameters()) weights.push_back({item.key(), item.value().detach()});
  trireme::checkpoint::write_safetensors(folder + "/model.safetensors", weights, {{"format", "pt"}});
}

int train(const comm::World& world, const std::string& folder, at::ScalarType dtype) {
  const auto options = at::TensorOptions(dtype).device(world.device());
  const auto mnist = open_mnist(folder);
  const std::int64_t ranks = world.size(), local_batch = kBatch / ranks;
  if (kBatch % ranks != 0 || mnist.train->size() % ranks != 0)
    throw trireme::ConfigError(fmt::format(
        "the ranks must have batches of one size, because their mean gradients are averaged: start a number "
        "of them that divides {} and {}",
        kBatch, mnist.train->size()));
  // A folder that cannot be written is an error now, not after the training.
  const trireme::OutputFolder output("runs/mnist_level_1", world.rank());

  BasicNet net;
  // Trireme's layers get their memory, and their weights by name, here.
  nn::materialize(*trireme::model_source(net).model, kSeed, dtype, world.device());
  auto model = trireme::ddp(net, world.group());
  // torch::optim::AdamW in one kernel, as the other levels have it: in fp32 the weights are then equal, too.
  trireme::optim::FusedAdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3).weight_decay(0.01));

  trireme::DistributedSampler sampler(mnist.train, world.size(), world.rank(), {.seed = kSeed, .global_batch = kBatch});
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    net->train();
    auto loss_sum = at::zeros({}, options);
    for (std::int64_t begin = 0; begin < sampler.size(); begin += local_batch, ++step) {
      const auto batch = read(*mnist.train, sampler, begin, local_batch, true, options);
      const nn::Context context{.training = true, .seed = kSeed, .step = step, .sample_ids = batch.ids};
      const auto loss = at::cross_entropy_loss(model(batch.images, context), batch.labels);
      loss.backward();  // the gradients are averaged over the ranks meanwhile
      optimizer.step();
      optimizer.zero_grad();
      loss_sum += loss.detach() * batch.labels.size(0);
    }
    world.group().all_reduce(loss_sum);
    const auto accuracy = evaluate(net, *mnist.validation, world, options);
    const auto loss = loss_sum.item<double>() / static_cast<double>(mnist.train->size());
    if (world.rank() == 0) fmt::print("{}\n", result(epoch, loss, accuracy));
  }
  if (world.rank() == 0) save(*net, output.path());
  return 0;
}

// run_program() starts the ranks' world, and ends all ranks when one fails; the world shuts down when it returns.
int main(int argc, char** argv) {
  return trireme::run_program("mnist_level_1", [&](comm::World& world) {
    const std::string precision = argc == 3 ? argv[2] : "fp32";
    if (argc < 2 || argc > 3 || (precision != "fp32" && precision != "fp64"))
      throw trireme::ConfigError("usage: mnist_level_1 FOLDER [fp32|fp64]");
    return train(world, argv[1], precision == "fp64" ? at::kDouble : at::kFloat);
  });
}
