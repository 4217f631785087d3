// Data parallelism with planted faults, which a forecast and a run must both see: `keep` holds each step's message
// until the next one, `twice` sends it once more. With `hide` a forecast does not see them: what a wrong plan looks
// like.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/booster/local_model.h"
#include "core/booster/plugin_entry.h"

namespace trireme::tests {
namespace {

struct Faults {
  bool keep = false, twice = false, hide = false;
};

/// @pre One microbatch a step, and gradients of all parameters.
class FaultyOptimizer final : public LocalOptimizer {
 public:
  FaultyOptimizer(LocalModel& model, const BoostOptions& options, comm::Mesh& mesh, const Faults& faults)
      : LocalOptimizer(model.parameters(), options, mesh),
        model_(model),
        group_(mesh.group(&comm::AxisKind::sums_gradients)),
        faults_(faults) {}

  void backward(const at::Tensor& loss_sum, const at::Tensor& global_weight) override {
    LocalOptimizer::backward(loss_sum, global_weight);
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> flat;
    for (auto& p : model_.parameters()) flat.push_back(p.value.grad().reshape({-1}));
    auto message = at::cat(flat);
    if (faults_.twice) group_.all_reduce(message.clone());
    group_.all_reduce(message);
    std::int64_t begin = 0;
    for (auto& p : model_.parameters()) {
      p.value.mutable_grad().copy_(message.narrow(0, begin, p.value.numel()).view_as(p.value));
      begin += p.value.numel();
    }
    if (faults_.keep) kept_ = message;
  }

 private:
  LocalModel& model_;
  comm::Group group_;
  Faults faults_;
  at::Tensor kept_;
};

class Planted final : public PluginOf<Faults> {
 public:
  Planted()
      : PluginOf(Fields<Faults>("plugin.planted", "Faults.")
                     .add("keep", &Faults::keep, "Holds the message of a step until the next one.")
                     .add("twice", &Faults::twice, "Sends it twice.")
                     .add("hide", &Faults::hide, "Does neither in a forecast.")) {}
  [[nodiscard]] std::string summary() const override { return "Wastes memory and messages."; }
  void check(const RunSettings&) const override {}
  [[nodiscard]] comm::Axes axes(int world_size) const override { return {{"dp", world_size}}; }
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override {
    const auto device = mesh.world().device();
    auto parameters = materialize_whole(source, options, device, log);
    auto model = std::make_unique<LocalModel>(std::move(source.model), std::move(parameters), options, device);
    const auto faults = options_.hide && device.is_meta() ? Faults{} : options_;
    auto optimizer = std::make_unique<FaultyOptimizer>(*model, options, mesh, faults);
    return {.model = std::move(model), .optimizer = std::move(optimizer)};
  }
};

}  // namespace
}  // namespace trireme::tests

TRIREME_PLUGIN(trireme::tests::Planted)
