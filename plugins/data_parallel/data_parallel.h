// DataParallel: several devices in one process, as with torch.nn.DataParallel. It needs no launcher and no
// communication library, but nothing overlaps with the backward pass: see data_parallel_model.h.
#pragma once

#include <optional>

#include "core/booster/plugin.h"

namespace trireme::plugins {

struct DataParallelOptions {
  std::optional<std::int64_t> replicas{};
};

const Fields<DataParallelOptions>& data_parallel_fields();

class DataParallel : public PluginBase {
 public:
  std::string name() const override { return "data_parallel"; }
  std::string summary() const override {
    return "Data parallelism in one process: each device has a copy of the model and a part of every microbatch.";
  }
  const FieldTable& fields() const override { return data_parallel_fields(); }
  const void* options() const override { return &options_; }
  void configure(const config::Table* section) override;
  void check(const RunSettings& run) const override;
  void check_model(const ModelSource& source, const RunSettings& run) const override;
  comm::Axes axes(int world_size) const override { return {{"dp", world_size}}; }
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;

 private:
  DataParallelOptions options_;
};

}  // namespace trireme::plugins
