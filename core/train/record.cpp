#include "core/train/record.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/checkpoint/files.h"
#include "core/checkpoint/safetensors.h"

namespace trireme::train {
namespace {

std::string gradients_of(const std::string& folder, std::int64_t step) {
  return fmt::format("{}/gradients-{}.safetensors", folder, step);
}

double norm_of(const at::Tensor& tensor) { return at::linalg_vector_norm(tensor.to(at::kDouble)).item<double>(); }

/// Of all tensors of a file.
double norm_of(const checkpoint::SafeTensors& file) {
  double squares = 0;
  for (const auto& [name, info] : file.tensors()) squares += std::pow(norm_of(file.read(name)), 2);
  return std::sqrt(squares);
}

/// `least`: of all tensors' norm, below which a tensor's own does not count.
void compare(const std::string& path, const std::string& reference, double least, Distance& largest) {
  const checkpoint::SafeTensors got(path), expected(reference);
  const double floor = least * norm_of(expected);
  for (const auto& [name, info] : expected.tensors()) {
    double distance = INFINITY;
    if (got.tensors().count(name) != 0) {
      const auto of = expected.read(name).to(at::kDouble);
      const double off = norm_of(got.read(name).to(at::kDouble) - of);
      distance = off == 0 ? 0 : off / std::max(norm_of(of), floor);
    }
    if (!(distance <= largest.value)) largest = {distance, name};  // NaN counts as far
  }
  for (const auto& [name, info] : got.tensors())
    if (expected.tensors().count(name) == 0) largest = {INFINITY, name};
}

std::vector<double> losses_of(const std::string& folder) {
  return nlohmann::json::parse(checkpoint::read_file(folder + "/losses.json")).get<std::vector<double>>();
}

}  // namespace

void record_steps(Prepared p, comm::World& world, std::int64_t steps, const std::string& folder) {
  Booster booster(world, std::move(p.plugin), booster_options(p));
  auto run = booster.boost(training_inputs(p));
  if (world.rank() == 0) checkpoint::make_folder(folder);
  world.group().barrier();
  std::vector<double> losses;
  for (std::int64_t epoch = 0; run.step < steps; ++epoch) {
    run.loader->start_epoch(epoch);
    while (run.step < steps) {
      const auto batch = run.loader->next();
      if (!batch) break;
      auto loss = booster.forward_backward(run, *batch);
      booster.data_group().all_reduce(loss);
      losses.push_back(loss.item<double>());
      checkpoint::write_slices(gradients_of(folder, run.step + 1), run.model->gradients(), booster.mesh());
      run.optimizer->step(run.schedule->lr(run.step++));
      run.optimizer->zero_grad();
    }
  }
  checkpoint::write_slices(folder + "/weights.safetensors", run.model->weights(), booster.mesh());
  if (world.rank() == 0) checkpoint::write_file(folder + "/losses.json", nlohmann::json(losses).dump());
}

Difference compare_records(const std::string& folder, const std::string& reference, bool coarse) {
  Difference out;
  const auto got = losses_of(folder), expected = losses_of(reference);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double loss = i < got.size() ? std::abs(got[i] - expected[i]) / std::abs(expected[i]) : INFINITY;
    if (!(loss <= out.loss)) out.loss = loss;
    const auto step = static_cast<std::int64_t>(i) + 1;
    compare(gradients_of(folder, step), gradients_of(reference, step), coarse ? 1 : 1e-6, out.gradient);
  }
  compare(folder + "/weights.safetensors", reference + "/weights.safetensors", coarse ? 1 : 1e-3, out.weight);
  return out;
}

}  // namespace trireme::train
