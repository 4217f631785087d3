#include "core/plan/calibration.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/cores.h"
#include "core/base/trace.h"
#include "core/comm/devices.h"
#include "core/plan/measured.h"
#include "core/plan/operator_rates.h"
#include "core/plan/step_rates.h"

namespace trireme::plan {
namespace {

/// Latency and rate from all-reduces of a short and of a long tensor.
LinkRates measure_link(comm::World& world, double seconds) {
  const auto& group = world.group();
  const int rounds = 2 * (group.size() - 1);
  const auto time_of = [&](std::int64_t elements) {
    const auto tensor = at::zeros({elements}, at::TensorOptions(at::kFloat).device(world.device()));
    // Every rank must call it as often.
    const int calls = static_cast<int>(std::clamp(seconds * 1e8 / static_cast<double>(elements + 1000), 3.0, 2000.0));
    std::vector<double> each;
    for (int i = 0; i < calls; ++i) {
      synchronize(world.device());
      const double begun = trace::now();
      group.all_reduce(tensor);
      synchronize(world.device());
      each.push_back(trace::now() - begun);
    }
    return median(std::move(each));
  };
  constexpr std::int64_t kLong = 1 << 20;
  time_of(1);
  const double brief = time_of(1), lengthy = time_of(kLong);
  const double bytes = rounds / static_cast<double>(group.size()) * 4 * kLong;
  return {.latency_us = rounded(1e6 * brief / rounds),
          .gb_per_s = rounded(1e-9 * bytes / std::max(lengthy - brief, lengthy / 10))};
}

}  // namespace

Machine measure_machine(comm::World& world, double seconds) {
  constexpr double kMeasurements = 70;  // about as many as there are
  Machine machine{.name = world.device().is_cuda() ? comm::cuda_device_name(world.device().index()) : "CPU",
                  .device = world.device().is_cuda() ? "cuda" : "cpu",
                  .ranks_per_host = world.info().local_size};
  world.group().barrier();
  StepRates steps;
  if (world.device().is_cuda()) {
    machine.compute = rates_of_operators(world.device(), seconds / kMeasurements);
  } else {
    machine.cores = usable_cores();
    if (world.size() > 1) machine.alone = rounded(speed_alone(world));
    steps = rates_in_steps(world, seconds);
    machine.compute = std::move(steps.compute);
  }
  world.group().barrier();
  machine.inside = world.size() > 1 ? measure_link(world, seconds / kMeasurements) : LinkRates{1, 10};
  if (world.size() > 1) machine.inside.jitter_us = steps.jitter_us;
  machine.between = machine.inside;
  return machine;
}

}  // namespace trireme::plan
