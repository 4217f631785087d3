// DataParallel: several devices in one process, as with torch.nn.DataParallel. It needs no launcher and no
// communication library, but nothing overlaps with the backward pass: see data_parallel_model.h.
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/booster/plugin.h"
#include "core/booster/plugin_entry.h"
#include "core/comm/world.h"
#include "core/nn/block.h"
#include "core/nn/sums_over_ranks.h"
#include "plugins/common_options.h"
#include "plugins/data_parallel/data_parallel_model.h"
#include "plugins/options.h"

namespace trireme::plugins {
namespace {

/// A CPU is one device: two replicas show what the plugin does there.
constexpr std::int64_t kReplicasOnCpu = 2;

int gpus_of(const RunSettings& run) { return run.device == "cpu" ? 0 : comm::cuda_device_count(); }

/// `gpus`: 0 on the CPU.
std::int64_t replicas_on(const DataParallelOptions& options, int gpus) {
  return options.replicas.value_or(gpus > 0 ? gpus : kReplicasOnCpu);
}

void check_layout(const config::Table* section, std::int64_t replicas, int ranks, int gpus) {
  if (ranks > 1)
    throw ConfigError(
        fmt::format("parallel.plugin: \"data_parallel\" runs its replicas in one process, but there are {}; set "
                    "parallel.plugin = \"torch_ddp\" for data parallelism over ranks, or start 1 rank",
                    text::quantity(ranks, "rank")));
  if (gpus > 0 && replicas > gpus)
    config::fail(
        section, "replicas",
        fmt::format("{} replicas need a CUDA device each, but {} visible; lower it, or leave it out to use all "
                    "visible devices",
                    replicas, gpus == 1 ? "1 is" : fmt::format("{} are", gpus)));
}

/// A replica's statistics are those of its own samples.
void check_norms(const nn::Model& model, std::int64_t replicas) {
  if (replicas == 1) return;
  for (const auto& module : model.modules())
    if (nn::summing_layer(*module) != nullptr)
      throw ConfigError(
          "model.sync_batch_norm: the plugin \"data_parallel\" normalises the samples of each replica by themselves, "
          "so "
          "its batch normalisation is not synchronised; set it to false, or use parallel.plugin = \"torch_ddp\" with a "
          "rank per device");
}

const Fields<DataParallelOptions>& data_parallel_fields() {
  static const auto table = [] {
    auto rows =
        Fields<DataParallelOptions>(
            "plugin.data_parallel",
            "Data parallelism in one process, as with torch.nn.DataParallel: no launcher, but the gradients are "
            "added after the backward pass, where torch_ddp with a rank per device does so during it.")
            .add("replicas", &DataParallelOptions::replicas,
                 "Number of copies of the model, which share each microbatch; a CUDA device or, on the CPU, a "
                 "thread each. Unset: one for each visible CUDA device, 2 on the CPU.",
                 {.min = 1, .max = 64});
    add_absent_fp8(rows);
    return rows;
  }();
  return table;
}

}  // namespace

class DataParallel : public PluginOf<DataParallelOptions> {
 public:
  DataParallel() : PluginOf(data_parallel_fields()) {}
  std::string summary() const override {
    return "Data parallelism in one process: each device has a copy of the model and a part of every microbatch.";
  }
  void check(const RunSettings& run) const override {
    const int gpus = gpus_of(run);
    check_layout(run.section, replicas_on(options_, gpus), run.world_size, gpus);
  }
  void check_model(const ModelSource& source, const RunSettings& run) const override {
    PluginBase::check_model(source, run);
    check_norms(*source.model, replicas_on(options_, gpus_of(run)));
  }
  comm::Axes axes(int world_size) const override { return {{"dp", world_size}}; }
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;
};

BoostResult DataParallel::boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) {
  // A program has not called check() and check_model().
  const auto device = mesh.world().device();
  const int gpus = device.is_cuda() ? comm::cuda_device_count() : 0;
  const auto replicas = replicas_on(options_, gpus);
  check_layout(nullptr, replicas, mesh.world().size(), gpus);
  check_norms(*source.model, replicas);
  if (device.is_meta() && replicas > 1)
    throw ConfigError("the plugin data_parallel is planned with one replica a rank only; plan torch_ddp instead");
  std::vector<c10::Device> devices{device};
  for (int i = 0; static_cast<std::int64_t>(devices.size()) < replicas; ++i)
    if (!device.is_cuda() || i != device.index())
      devices.push_back(device.is_cuda() ? c10::Device(device.type(), static_cast<c10::DeviceIndex>(i)) : device);
  auto parameters = materialize_whole(source, options, device, log);
  auto model = std::make_unique<DataParallelModel>(source, std::move(parameters), options, std::move(devices));
  auto optimizer = std::make_unique<DataParallelOptimizer>(*model, options, mesh);
  return {.model = std::move(model), .optimizer = std::move(optimizer)};
}

}  // namespace trireme::plugins

TRIREME_PLUGIN(trireme::plugins::DataParallel)
