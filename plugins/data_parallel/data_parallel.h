// DataParallel: several devices in one process, as with torch.nn.DataParallel. It needs no launcher and no
// communication library, but nothing overlaps with the backward pass: see data_parallel_model.h.
#pragma once

#include "core/booster/plugin.h"
#include "plugins/options.h"

namespace trireme::plugins {

const Fields<DataParallelOptions>& data_parallel_fields();

class DataParallel : public PluginOf<DataParallelOptions> {
 public:
  DataParallel() : PluginOf(data_parallel_fields()) {}
  std::string summary() const override {
    return "Data parallelism in one process: each device has a copy of the model and a part of every microbatch.";
  }
  void check(const RunSettings& run) const override;
  void check_model(const ModelSource& source, const RunSettings& run) const override;
  comm::Axes axes(int world_size) const override { return {{"dp", world_size}}; }
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;
};

}  // namespace trireme::plugins
