// TorchDDP: plain data parallelism on PyTorch's own reducer (c10d::Reducer), driven from C++.
//
// Every rank holds the full model and optimizer state, and has its share of the batch. Gradients are summed over the
// ranks in buckets, each as soon as its gradients are complete, while the backward pass continues; they are sums of
// d(loss sum)/global weight, so no division follows (contract C3). Buckets are never rebuilt during a run, because the
// order of summation must be the same after a resume (C8).
#pragma once

#include "core/booster/plugin.h"

namespace trireme::plugins {

struct TorchDdpOptions {
  bool broadcast_buffers = true;
  std::int64_t bucket_cap_mb = 25;
  bool find_unused_parameters = false;
  bool check_reduction = false;
  bool gradient_as_bucket_view = true;
  bool static_graph = false;
};

const Fields<TorchDdpOptions>& torch_ddp_fields();

class TorchDdp : public PluginBase {
 public:
  std::string name() const override { return "torch_ddp"; }
  std::string summary() const override {
    return "Data parallelism: each rank has the whole model and a part of the batch.";
  }
  const FieldTable& fields() const override { return torch_ddp_fields(); }
  const void* options() const override { return &options_; }
  void configure(const config::Table* section) override;
  void check(const RunSettings& run) const override;
  comm::Axes axes(int world_size) const override { return {{"dp", world_size}}; }
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;

 private:
  TorchDdpOptions options_;
};

}  // namespace trireme::plugins
