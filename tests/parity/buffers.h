// Shared by the tests of buffers: a data set, a training under a plugin, and the plugins' configurations.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/optim/optimizers.h"
#include "tasks/tasks.h"
#include "tests/parity/layout.h"

namespace trireme::tests::buffers {

constexpr std::int64_t kFeatures = 6, kClassCount = 3, kGlobal = 8, kMicro = 2, kSteps = 4;
constexpr double kLr = 0.2;

class Points : public data::Dataset {
 public:
  explicit Points(std::int64_t size = 2 * kGlobal) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t, bool) override {
    const auto whole = shard::Placement::whole("x", {kFeatures});
    const auto x =
        shard::draw(shard::Init::normal(0.5, 2), 50 + static_cast<std::uint64_t>(index), whole, at::kDouble, at::kCPU);
    return data::Sample{{{"x", x}}, data::class_label(index * 5 % kClassCount)};
  }

 private:
  std::int64_t size_;
};

struct Plug {
  std::string name, plugin, keys;
  int pipeline = 1;  ///< number of pipeline ranks
  bool recompute = false;
};
inline void PrintTo(const Plug& plug, std::ostream* out) { *out << plug.name; }

inline Case case_of(const Plug& plug) {
  Case c;
  c.plugin_name = plug.plugin;
  c.plugin = plug.keys;
  return c;
}

inline BoostOptions options_of(const Plug& plug) {
  BoostOptions options;
  options.train.global_batch = kGlobal;
  // The plugin's key microbatch_size must have the same effect.
  if (plug.keys.find("microbatch_size") == std::string::npos) options.train.micro_batch = kMicro;
  options.train.precision = "fp64";
  options.train.recompute = plug.recompute;
  options.train.epochs = kSteps;
  options.optimizer.method = optim::sgd();
  options.optimizer.lr = kLr;
  options.seed = kSeed;
  return options;
}

/// A training under a plugin.
struct Training {
  Training(const Plug& plug, std::shared_ptr<nn::Model> model, const std::string& weights = "")
      : Training(plug, std::move(model), weights, options_of(plug)) {}
  Training(const Plug& plug, std::shared_ptr<nn::Model> model, const std::string& weights, const BoostOptions& options,
           std::shared_ptr<data::Dataset> data = std::make_shared<Points>())
      : booster(world(), make_plugin(case_of(plug)), options) {
    BoostInputs inputs;
    inputs.source.model = std::move(model);
    inputs.source.weights = weights;
    inputs.task = tasks::classification();
    inputs.data = std::move(data);
    run = booster.boost(std::move(inputs));
  }
  void train_to(std::int64_t step) {
    const auto steps = run.loader->steps_per_epoch();
    while (run.step < step) {
      run.loader->start_epoch(run.step / steps, run.step % steps);
      for (auto batch = run.loader->next(); batch && run.step < step; batch = run.loader->next())
        run.train_step(*batch);
    }
  }
  Named state() { return gathered(run.model->state_dict(), booster.mesh()); }
  Booster booster;
  Boosted run;
};

/// Every plugin, with and without recompute, and pipelines.
inline std::vector<Plug> all_plugs() {
  return {Plug{"torch_ddp", "torch_ddp", ""},
          Plug{"torch_ddp_recompute", "torch_ddp", "", 1, true},
          Plug{"low_level_zero", "low_level_zero", "stage = 1"},
          Plug{"low_level_zero_2", "low_level_zero", "stage = 2", 1, true},
          Plug{"gemini", "gemini", "chunk_config = 100"},
          Plug{"gemini_recompute", "gemini", "chunk_config = 100", 1, true},
          Plug{"hybrid", "hybrid_parallel", "zero_stage = 0"},
          Plug{"hybrid_zero3", "hybrid_parallel", "zero_stage = 3"},
          Plug{"pipeline", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 2", 2},
          Plug{"pipeline_zero1_recompute", "hybrid_parallel",
               "pp_size = 2\nmicrobatch_size = 2\nzero_stage = 1\nnum_layers_per_stage = [5, 3]", 2, true},
          Plug{"pipeline_zb_h1", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 2\npp_style = \"zb_h1\"", 2},
          Plug{"pipeline_interleaved_recompute", "hybrid_parallel",
               "pp_size = 2\nmicrobatch_size = 2\npp_style = \"interleaved\"\nnum_model_chunks = 2", 2, true}};
}

/// The fixture of a suite over all_plugs().
class UnderPlugins : public testing::TestWithParam<Plug> {
 protected:
  void SetUp() override {
    if (world().size() % GetParam().pipeline != 0) GTEST_SKIP() << "needs more ranks";
  }
};

}  // namespace trireme::tests::buffers
