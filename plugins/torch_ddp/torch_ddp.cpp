// TorchDDP: plain data parallelism on PyTorch's own reducer (c10d::Reducer), driven from C++.
//
// Every rank holds the full model and optimizer state, and has its share of the batch. Gradients are summed over the
// ranks in buckets, each as soon as its gradients are complete, while the backward pass continues; they are sums of
// d(loss sum)/global weight, so no division follows (contract C3). Buckets are never rebuilt during a run, because the
// order of summation must be the same after a resume (C8).
#include <set>
#include <string>

#include "core/booster/local_model.h"
#include "core/booster/plugin.h"
#include "core/booster/plugin_entry.h"
#include "core/nn/parameters.h"
#include "plugins/common_options.h"
#include "plugins/options.h"
#include "plugins/torch_ddp/ddp_model.h"

namespace trireme::plugins {

static const Fields<TorchDdpOptions>& torch_ddp_fields() {
  static const auto table = [] {
    auto rows =
        Fields<TorchDdpOptions>("plugin.torch_ddp", "Data parallelism with PyTorch's DDP reducer.")
            .add("broadcast_buffers", &TorchDdpOptions::broadcast_buffers, kBroadcastBuffersText)
            .add("bucket_cap_mb", &TorchDdpOptions::bucket_cap_mb, "Size of a gradient bucket in MiB.", {.min = 1})
            .add("find_unused_parameters", &TorchDdpOptions::find_unused_parameters,
                 "Find the parameters that take no part in the loss in each step; costs a traversal of the autograd "
                 "graph.")
            .add("check_reduction", &TorchDdpOptions::check_reduction, kCheckReductionText)
            .add("gradient_as_bucket_view", &TorchDdpOptions::gradient_as_bucket_view,
                 "true: gradients are views into the reduction buckets. false: gradients have memory of their own, "
                 "which "
                 "costs another copy of all gradients.")
            .add("static_graph", &TorchDdpOptions::static_graph,
                 "true: every step uses the same parameters, so unused ones are found only once, in the first step.");
    add_absent_fp8(rows);
    return rows;
  }();
  return table;
}

class TorchDdp : public PluginOf<TorchDdpOptions> {
 public:
  TorchDdp() : PluginOf(torch_ddp_fields()) {}
  std::string summary() const override {
    return "Data parallelism: each rank has the whole model and a part of the batch.";
  }
  void check(const RunSettings& run) const override {
    if (options_.static_graph && options_.find_unused_parameters)
      config::fail(run.section, "find_unused_parameters",
                   "static_graph finds the unused parameters once, in the first step, so find_unused_parameters would "
                   "have no effect; set only one of the two");
  }
  comm::Axes axes(int world_size) const override { return {{"dp", world_size}}; }
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;
};

/// Parameters whose initial values may differ between ranks, because they are not drawn by name.
static std::set<std::string> not_drawn(ModelSource& source) {
  std::set<std::string> names;
  for (const auto& parameter : nn::declarations(*source.model))
    if (!parameter.init || !source.weights.empty()) names.insert(parameter.name);
  return names;
}

BoostResult TorchDdp::boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) {
  const auto device = mesh.world().device();
  const auto from_first_rank = not_drawn(source);
  auto parameters = materialize_whole(source, options, device, log);
  const auto& group = mesh.group(&comm::AxisKind::sums_gradients);
  std::unique_ptr<LocalModel> model;
  if (group.size() == 1) {
    model = std::make_unique<LocalModel>(std::move(source.model), std::move(parameters), options, device);
  } else {
    for (const auto& p : parameters)
      if (from_first_rank.count(p.name) != 0) group.broadcast(p.value.detach(), 0);
    model =
        std::make_unique<DdpModel>(std::move(source.model), std::move(parameters), options, options_, device, group);
  }
  auto optimizer = std::make_unique<LocalOptimizer>(model->parameters(), options, mesh);
  return {
      .model = std::move(model), .optimizer = std::move(optimizer), .broadcasts_buffers = options_.broadcast_buffers};
}

}  // namespace trireme::plugins

TRIREME_PLUGIN(trireme::plugins::TorchDdp)
