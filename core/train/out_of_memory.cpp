#include "core/train/out_of_memory.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "core/base/text.h"
#include "core/nn/batch_statistics.h"
#include "core/train/callback.h"

namespace trireme::train {
namespace {

/// "; held at most 12.0 MiB: weights 2.0 MiB, ...". What is not weights, gradients or state is taken for activations.
std::string held_memory(RunContext& run) {
  const auto optimizer = run.boosted.optimizer->report();
  std::int64_t buffers = 0;
  for (const auto& buffer : nn::buffers(run.boosted.model->module()))
    buffers += static_cast<std::int64_t>(buffer.value.nbytes());
  const auto peak = memory::peak_of(run.world.device());
  std::int64_t rest = peak;
  std::vector<std::string> parts;
  for (const auto& [what, bytes] :
       {std::pair<const char*, std::int64_t>{"weights", run.boosted.model->report().parameter_bytes},
        {"gradients", optimizer.gradient_bytes},
        {"optimizer state", optimizer.state_bytes - optimizer.host_state_bytes},
        {"average of the weights", run.boosted.average ? run.boosted.average->bytes() : 0},
        {"buffers", buffers}}) {
    rest -= bytes;
    if (bytes > 0) parts.push_back(fmt::format("{} {}", what, text::bytes(static_cast<double>(bytes))));
  }
  if (rest > 0)
    parts.push_back(fmt::format("activations{} {}", optimizer.gradient_bytes == 0 ? ", gradients" : " and temporaries",
                                text::bytes(static_cast<double>(rest))));
  return peak == 0 ? ""
                   : fmt::format("; held at most {}: {}", text::bytes(static_cast<double>(peak)), text::join(parts));
}

}  // namespace

bool may_retry(RunContext& run) {
  const auto& setup = run.setup;
  if (!run.boosted.model || setup.config.train.on_oom != kOomRetry || setup.batch.micro <= 1) return false;
  return !nn::has_batch_statistics(run.boosted.model->module());
}

std::string memory_remedy(RunContext& run) {
  const auto& setup = run.setup;
  if (!run.boosted.model)  // while weights and optimizer state are made
    return ": choose a smaller model, or partition it over more ranks (parallel.tp, parallel.pp, parallel.zero = 3)";
  std::vector<std::string> ways;
  if (setup.batch.micro > 1) ways.push_back(fmt::format("use a train.micro_batch below {}", setup.batch.micro));
  if (!setup.config.train.recompute)
    ways.emplace_back("set train.recompute = true");
  else if (!setup.config.train.offload_activations && run.world.device().is_cuda())
    ways.emplace_back("set train.offload_activations = true");
  for (auto& way : run.boosted.model->report().memory_advice) ways.push_back(std::move(way));
  return held_memory(run) +
         (ways.empty() ? ": use more ranks" : fmt::format(": {}, or use more ranks", text::join(ways)));
}

}  // namespace trireme::train
