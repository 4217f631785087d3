// TorchDDP: plain data parallelism on PyTorch's own reducer (c10d::Reducer), driven from C++.
//
// Every rank holds the full model and optimizer state, and has its share of the batch. Gradients are summed over the
// ranks in buckets, each as soon as its gradients are complete, while the backward pass continues; they are sums of
// d(loss sum)/global weight, so no division follows (contract C3). Buckets are never rebuilt during a run, because the
// order of summation must be the same after a resume (C8).
#pragma once

#include "core/booster/plugin.h"
#include "plugins/options.h"

namespace trireme::plugins {

const Fields<TorchDdpOptions>& torch_ddp_fields();

class TorchDdp : public PluginOf<TorchDdpOptions> {
 public:
  TorchDdp() : PluginOf(torch_ddp_fields()) {}
  std::string summary() const override {
    return "Data parallelism: each rank has the whole model and a part of the batch.";
  }
  void check(const RunSettings& run) const override;
  comm::Axes axes(int world_size) const override { return {{"dp", world_size}}; }
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;
};

}  // namespace trireme::plugins
