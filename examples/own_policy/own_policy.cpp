// A plugin file with its own policy: hybrid_parallel, with the ViT sharded in another way. Load it by its path:
//
//   trireme train CONFIG.toml --ranks 2 --set parallel.plugin=/path/to/own_policy.so --set parallel.tp=2
//
// Attention is sharded by heads as usual. The MLP's first layer gathers its outputs, so the second layer is whole on
// every rank, and so is the classifier. The results are the same, as for every policy.
#include <memory>
#include <utility>

#include "core/booster/plugin_entry.h"
#include "core/booster/plugin_loader.h"
#include "core/booster/plugin_wrapper.h"

namespace {

namespace role = trireme::nn::role;

trireme::nn::Policy policy() {
  return {.tensor = {{"vit.encoder.layer.*.attention.attention", role::attention},
                     {"vit.encoder.layer.*.attention.output.dense", role::row_parallel},
                     {"vit.encoder.layer.*.intermediate.dense", role::column_parallel_gather_output}}};
}

class OwnPolicy : public trireme::PluginWrapper {
 public:
  OwnPolicy() : PluginWrapper(trireme::load_plugin("hybrid_parallel")) {}
  std::string summary() const override { return "hybrid_parallel, with half of the ViT's MLP whole on every rank."; }
  void check_model(const trireme::ModelSource& source, const trireme::RunSettings& run) const override {
    PluginWrapper::check_model(with_policy(source), run);
  }
  trireme::BoostResult boost(trireme::ModelSource source, const trireme::BoostOptions& options,
                             trireme::comm::Mesh& mesh, const trireme::Log& log) override {
    return PluginWrapper::boost(with_policy(std::move(source)), options, mesh, log);
  }

 private:
  static trireme::ModelSource with_policy(trireme::ModelSource source) {
    source.policy = policy();
    return source;
  }
};

}  // namespace

TRIREME_PLUGIN(OwnPolicy)
