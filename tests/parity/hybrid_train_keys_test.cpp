// Keys of [train] that choose kernels and the blocks to recompute give the same numbers under every plugin, and each
// has its documented effect.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/nn/adapt.h"
#include "core/nn/block.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

const std::vector<Layout>& plugins() {
  static const std::vector<Layout> all{
      {"torch_ddp", ""}, {"low_level_zero", "stage = 2"}, {"gemini", "chunk_config = 1000"}, {"hybrid_parallel", ""}};
  return all;
}

class SharedTrainOptions : public testing::TestWithParam<Case> {};

TEST_P(SharedTrainOptions, EqualOneProcess) { expect_same_as_one_process(GetParam()); }

std::vector<Case> with_each_plugin(const std::vector<Case>& cases) {
  std::vector<Case> out;
  for (const auto& [plugin, keys] : plugins())
    for (auto& c : cross(plugin, keys, {{plugin, ""}}, cases)) out.push_back(std::move(c));
  return out;
}

INSTANTIATE_TEST_SUITE_P(
    Plugins, SharedTrainOptions,
    testing::ValuesIn(with_each_plugin(
        {Case{.name = "flash", .micro_batch = 2, .train = "attention_kernel = \"flash\"", .fused_attention = true},
         Case{.name = "math", .max_norm = 0.5, .train = "attention_kernel = \"math\""},
         Case{.name = "scores", .train = "enable_flash_attention = false"},
         Case{.name = "fused",
              .micro_batch = 2,
              .dropout = 0.2,
              .train = "enable_fused_normalization = true\nenable_jit_fused = true"},
         Case{.name = "all", .dropout = 0.2, .train = "enable_all_optimization = true"},
         Case{.name = "ratio", .dropout = 0.2, .recompute = true, .train = "recompute_ratio = 0.5"},
         Case{.name = "layers", .micro_batch = 2, .recompute = true, .train = "recompute_layers_per_stage = [3]"}})),
    [](const auto& value) { return value.param.name; });

/// Counts its forward passes.
struct Counting : torch::nn::Module {
  Counting(std::int64_t in, int& forward_passes) : passes(forward_passes) {
    linear = register_module("linear", torch::nn::Linear(in, 8));
    linear->to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    ++passes;
    return linear(x.flatten(1));
  }
  torch::nn::Linear linear{nullptr};
  int& passes;
};

TEST(TrainKeysRules, PartOfTheBlocksIsRecomputed) {
  struct Counted {
    const char* train;
    int again;  ///< how many of the four blocks run twice
  };
  for (const auto& [plugin, keys] : plugins())
    for (const auto& [train, again] :
         {Counted{"", 0}, Counted{"recompute = true", 4}, Counted{"recompute = true\nrecompute_ratio = 0.01", 1},
          Counted{"recompute = true\nrecompute_ratio = 0.5", 2},
          Counted{"recompute = true\nrecompute_layers_per_stage = [3]", 3}}) {
      const Case c{.name = "count", .plugin = keys, .plugin_name = plugin, .train = train};
      SCOPED_TRACE(plugin + ": " + train);
      Booster booster(world(), make_plugin(c), make_options(c));
      auto inputs = make_inputs(c);
      inputs.source.weights = "";
      inputs.source.policy = {};
      int passes = 0;
      torch::nn::Sequential layers;
      for (int i = 0; i < 4; ++i) layers->push_back(std::make_shared<Counting>(i == 0 ? 3 * 12 * 12 : 8, passes));
      inputs.source.model = nn::adapt(layers);
      auto run = booster.boost(std::move(inputs));
      run.loader->start_epoch(0);
      run.train_step(*run.loader->next());
      EXPECT_EQ(passes, 4 + again);
    }
}

TEST(TrainKeysRules, TheHeaderNamesTheKernels) {
  if (world().device().is_cuda()) GTEST_SKIP() << "for the CPU";
  struct Line {
    const char* train;
    double dropout;
    const char* line;
  };
  for (const auto& [plugin, keys] : plugins())
    for (const auto& [train, dropout, line] :
         {Line{"", 0, ""},
          Line{"attention_kernel = \"flash\"", 0, "kernels (CPU): attention by LibTorch's flash kernel"},
          Line{"attention_kernel = \"math\"", 0, "kernels (CPU): attention scores are materialized"},
          Line{"enable_all_optimization = true", 0,
               "kernels (CPU): attention by LibTorch's flash kernel; enable_all_optimization changes nothing for this "
               "model on this device"},
          Line{"enable_all_optimization = true", 0.1,
               "kernels (CPU): attention scores are materialized, because of their dropout; bias and GELU by "
               "LibTorch's kernels, dropout and "
               "residual sum in one pass"}}) {
      const Case c{.name = "line", .dropout = dropout, .plugin = keys, .plugin_name = plugin, .train = train};
      SCOPED_TRACE(plugin + ": " + train);
      Booster booster(world(), make_plugin(c), make_options(c));
      const auto notes = booster.boost(make_inputs(c)).model->report().notes;
      const auto found =
          std::find_if(notes.begin(), notes.end(), [](const auto& note) { return note.starts_with("kernels"); });
      EXPECT_EQ(found == notes.end() ? "" : *found, line);
    }
}

// A kernel that the device lacks or that the model cannot use is an error under every plugin.
TEST(TrainKeysRules, KernelsThatCannotBeUsedAreRefused) {
  if (world().device().is_cuda()) GTEST_SKIP() << "for the CPU";
  for (const auto& [plugin, keys] : plugins())
    for (const auto& [train, adapted] : {std::pair{"attention_kernel = \"cudnn\"", false},
                                         {"attention_kernel = \"memory_efficient\"", false},
                                         {"attention_kernel = \"flash\"", true},
                                         {"enable_jit_fused = true", true},
                                         {"recompute = true\nrecompute_layers_per_stage = [1, 1]", false}}) {
      const Case c{.name = "no", .plugin = keys, .adapted = adapted, .plugin_name = plugin, .train = train};
      SCOPED_TRACE(plugin + ": " + train);
      const auto inputs = make_inputs(c);
      const RunSettings settings{.train = make_options(c).train, .device = "cpu"};
      EXPECT_THROW(make_plugin(c)->check_model(inputs.source, settings), ConfigError);
      Booster booster(world(), make_plugin(c), make_options(c));
      EXPECT_THROW(booster.boost(make_inputs(c)), ConfigError);
    }
}

}  // namespace
}  // namespace trireme::tests
