#include "core/train/report/record.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_parse.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/shared_errors.h"

namespace trireme::train {
namespace {

std::string gradients_of(const std::string& folder, std::int64_t step) {
  return fmt::format("{}/gradients-{}.safetensors", folder, step);
}

double norm_of(const at::Tensor& tensor) { return at::linalg_vector_norm(tensor.to(at::kDouble)).item<double>(); }

/// The norm of each tensor of a file, by name.
std::map<std::string, double> norms_of(const checkpoint::SafeTensors& file) {
  std::map<std::string, double> norms;
  for (const auto& [name, info] : file.tensors()) norms[name] = norm_of(file.read(name));
  return norms;
}

/// The norm over all tensors together.
double norm_of(const std::map<std::string, double>& norms) {
  double squares = 0;
  for (const auto& [name, norm] : norms) squares += norm * norm;
  return std::sqrt(squares);
}

double worse(double a, double b) { return std::isnan(b) ? INFINITY : std::max(a, b); }

/// The parameters whose gradients are zero up to rounding, such as a key's bias. Adam updates them nevertheless.
std::set<std::string> all_but_zero(const std::string& folder, std::int64_t steps) {
  constexpr double kRounding = 1e-9;  // relative to the norm of all gradients
  std::set<std::string> quiet;
  for (std::int64_t step = 1; step <= steps; ++step) {
    const auto norms = norms_of(checkpoint::SafeTensors(gradients_of(folder, step)));
    const double all = norm_of(norms);
    for (const auto& [name, norm] : norms)
      if (norm > kRounding * all)
        quiet.erase(name);
      else if (step == 1)
        quiet.insert(name);
  }
  return quiet;
}

/// The largest distance over all tensors: |got - expected| / max(|expected - from|, least * the norm of all |expected -
/// from|). `from`: null for zero. A value that is not finite has an infinite distance. With `may_skip` the distance is
/// 0 if both files have such values, because then both runs have skipped the step.
Distance compare(const std::string& path, const std::string& reference, const checkpoint::SafeTensors* from,
                 double least, bool may_skip, const std::set<std::string>& without = {}) {
  const checkpoint::SafeTensors got(path), expected(reference);
  std::map<std::string, double> size;
  for (const auto& [name, info] : expected.tensors()) {
    const auto of = expected.read(name).to(at::kDouble);
    size[name] = norm_of(from == nullptr ? of : of - from->read(name).to(at::kDouble));
  }
  const double all = norm_of(size);
  if (may_skip && !std::isfinite(all) && !std::isfinite(norm_of(norms_of(got)))) return {};
  Distance largest;
  for (const auto& [name, info] : expected.tensors()) {
    if (without.contains(name)) continue;
    double distance = INFINITY;
    if (got.tensors().count(name) != 0) {
      const double off = norm_of(got.read(name).to(at::kDouble) - expected.read(name).to(at::kDouble));
      distance = off == 0 ? 0 : worse(0, off / std::max(size[name], least * all));
    }
    if (distance > largest.value) largest = {distance, name};
  }
  for (const auto& [name, info] : got.tensors())
    if (expected.tensors().count(name) == 0) largest = {INFINITY, name};
  return largest;
}

std::vector<double> losses_of(const std::string& folder) {
  return parse_json(read_file(folder + "/losses.json")).get<std::vector<double>>();
}

}  // namespace

void record_steps(RunSetup setup, comm::World& world, std::int64_t steps, const std::string& folder) {
  Booster booster(world, std::move(setup.plugin), booster_options(setup.config));
  auto run = booster.boost(training_inputs(setup));
  checkpoint::on_first_rank(world, [&] { make_folder(folder); });
  checkpoint::write_slices(folder + "/start.safetensors", run.model->state_dict(), booster.mesh());
  std::vector<double> losses;
  for (std::int64_t epoch = 0; run.step < steps; ++epoch) {
    run.loader->start_epoch(epoch);
    while (run.step < steps) {
      const auto batch = run.loader->next();
      if (!batch) break;
      auto loss = run.forward_backward(*batch);
      booster.loss_group().all_reduce(loss);
      losses.push_back(loss.item<double>());
      if (!std::isfinite(losses.back()))
        throw NonFiniteError(
            fmt::format("step {}: the loss is {}, so there is nothing to compare; try a lower optimizer.lr",
                        run.step + 1, std::isnan(losses.back()) ? "nan" : "inf"));
      checkpoint::write_slices(gradients_of(folder, run.step + 1), run.unscaled_gradients(), booster.mesh());
      run.optimizer->step(run.lr_schedule->lr(run.step++));
      run.optimizer->zero_grad();
    }
  }
  checkpoint::write_slices(folder + "/weights.safetensors", run.model->state_dict(), booster.mesh());
  checkpoint::on_first_rank(world, [&] { write_file(folder + "/losses.json", nlohmann::json(losses).dump()); });
}

Difference compare_records(const std::string& folder, const std::string& reference, bool coarse) {
  Difference out;
  const auto got = losses_of(folder), expected = losses_of(reference);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    out.loss = worse(out.loss, i < got.size() ? std::abs(got[i] - expected[i]) / std::abs(expected[i]) : INFINITY);
    const auto step = static_cast<std::int64_t>(i) + 1;
    const auto of = compare(gradients_of(folder, step), gradients_of(reference, step), nullptr, coarse ? 0.1 : 1e-6,
                            /*may_skip=*/coarse);
    if (of.value > out.gradient.value) out.gradient = of;
  }
  const checkpoint::SafeTensors start(reference + "/start.safetensors");
  const auto steps = static_cast<std::int64_t>(expected.size());
  out.weight = compare(folder + "/weights.safetensors", reference + "/weights.safetensors", coarse ? &start : nullptr,
                       coarse ? 1 : 1e-3, /*may_skip=*/false, all_but_zero(reference, steps));
  return out;
}

}  // namespace trireme::train
