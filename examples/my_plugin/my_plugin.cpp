// A user's own plugin: data parallelism that reduces all gradients in one message at the end of the last backward pass,
// optionally rounded to bfloat16 for the transfer. Load it by its path:
//
//   trireme train CONFIG.toml --ranks 2 --set parallel.plugin=/path/to/my_plugin.so --set plugin.my_plugin.wire=bf16
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/booster/local_model.h"
#include "core/booster/plugin_entry.h"
#include "core/config/table.h"

namespace {

struct Options {
  std::string wire = "same";
};

trireme::Fields<Options> fields_of_options() {
  return trireme::Fields<Options>("plugin.my_plugin", "One message for all gradients.")
      .add("wire", &Options::wire, "What gradients travel as: as they are, or bfloat16.",
           {.choices = {"same", "bf16"}});
}

// Tracks whether this backward pass is the last one of the step: no_sync() means that another one follows.
class OneMessageModel : public trireme::LocalModel {
 public:
  using LocalModel::LocalModel;
  trireme::ScopeGuard no_sync() override {
    const bool before = std::exchange(held_, true);
    return trireme::ScopeGuard([this, before] { held_ = before; });
  }
  bool held() const { return held_; }

 private:
  bool held_ = false;
};

// Each rank's gradients are sums over its share of the batch, divided by the weight of the whole global batch. Their
// sum over the ranks is therefore the gradient, and nothing is divided here. They are reduced at the end of the last
// backward pass, so gradients() and step() both get reduced ones (core/booster/boosted.h).
class OneMessage : public trireme::LocalOptimizer {
 public:
  OneMessage(OneMessageModel& model, const trireme::BoostOptions& options, trireme::comm::Mesh& mesh, bool half)
      : LocalOptimizer(model.parameters(), options, mesh),
        model_(model),
        group_(mesh.group(&trireme::comm::AxisKind::sums_gradients)),
        half_(half) {}

  void backward(const at::Tensor& loss_sum, const at::Tensor& global_weight) override {
    LocalOptimizer::backward(loss_sum, global_weight);
    if (!model_.held() && group_.size() > 1) reduce();
  }

 private:
  void reduce() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients, flat;
    for (auto& p : model_.parameters()) {
      if (!p.value.requires_grad()) continue;
      // Every rank sends the same message, even if its samples did not use a parameter.
      if (!p.value.grad().defined()) p.value.mutable_grad() = at::zeros_like(p.value);
      gradients.push_back(p.value.grad());
      flat.push_back(gradients.back().reshape({-1}));
    }
    if (flat.empty()) return;
    auto message = at::cat(flat);
    if (half_) message = message.to(at::kBFloat16);
    group_.all_reduce(message);
    std::int64_t begin = 0;
    for (auto& gradient : gradients) {
      gradient.copy_(message.narrow(0, begin, gradient.numel()).view_as(gradient));
      begin += gradient.numel();
    }
  }

  OneMessageModel& model_;
  trireme::comm::Group group_;
  bool half_;
};

class MyPlugin : public trireme::PluginOf<Options> {
 public:
  MyPlugin() : PluginOf(fields_of_options()) {}
  std::string summary() const override { return "Data parallelism with one message a step."; }
  void check(const trireme::RunSettings& run) const override {
    if (options_.wire == "bf16" && run.world_size == 1)
      trireme::config::fail(run.section, "wire", "one rank sends nothing; leave it out");
  }
  trireme::comm::Axes axes(int world_size) const override { return {{"dp", world_size}}; }

  trireme::BoostResult boost(trireme::ModelSource source, const trireme::BoostOptions& options,
                             trireme::comm::Mesh& mesh, const trireme::Log& log) override {
    const auto device = mesh.world().device();
    auto parameters = trireme::materialize_whole(source, options, device, log);
    auto model = std::make_unique<OneMessageModel>(std::move(source.model), std::move(parameters), options, device);
    auto optimizer = std::make_unique<OneMessage>(*model, options, mesh, options_.wire == "bf16");
    return {.model = std::move(model), .optimizer = std::move(optimizer)};
  }
};

}  // namespace

TRIREME_PLUGIN(MyPlugin)
