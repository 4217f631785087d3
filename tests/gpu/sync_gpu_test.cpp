// A training step queues work on the GPU and never waits for it: after three warm-up steps, LibTorch's sync debug mode
// turns each synchronising call into an error. Every plugin is tested on one rank. Without a GPU the test is skipped
// with a message.
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <vector>

#include "tests/parity/layout.h"

namespace trireme::tests {

static std::unique_ptr<comm::World> the_world;
comm::World& world() { return *the_world; }

namespace {

constexpr std::size_t kWarmUp = 3, kSteps = 5;

struct Row {
  const char *plugin, *keys, *train = "";
};
constexpr Row kRows[] = {{"torch_ddp", ""},
                         {"low_level_zero", "stage = 1"},
                         {"low_level_zero", "stage = 2"},
                         {"gemini", ""},
                         {"hybrid_parallel", ""},
                         {"hybrid_parallel", "enable_fused_normalization = true\nenable_jit_fused = true"},
                         {"hybrid_parallel", "zero_stage = 1"},
                         {"hybrid_parallel", "zero_stage = 3"},
                         {"torch_ddp", "", "recompute_modules = [\"attention\"]"},
                         {"torch_ddp", "", "recompute = true\noffload_activations = true"}};

/// While it lives, every call that makes the host wait for the device throws.
class NoSynchronisation {
 public:
  NoSynchronisation() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoSynchronisation() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
  NoSynchronisation(const NoSynchronisation&) = delete;
  NoSynchronisation& operator=(const NoSynchronisation&) = delete;
};

TEST(HostSync, DoesNotHappenInAStep) {
  if (world().device().is_cpu()) {
    std::cout << "NO GPU HERE: the test was compiled and linked, and not run\n";
    return;
  }
  for (const auto& row : kRows)
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      SCOPED_TRACE(testing::Message() << row.plugin << " " << row.keys << " " << row.train << " " << precision);
      const Case c{.name = "sync",
                   .samples = 8 * static_cast<std::int64_t>(kWarmUp + kSteps),
                   .micro_batch = 4,
                   .steps = kWarmUp + kSteps,
                   .dropout = 0.1,
                   .max_norm = 0.5,
                   .plugin = row.keys,
                   .precision = precision,
                   .plugin_name = row.plugin,
                   .train = row.train};
      Booster booster(world(), make_plugin(c), make_options(c));
      auto run = booster.boost(make_inputs(c));
      std::vector<data::StepBatch> batches;
      run.loader->start_epoch(0);
      while (auto batch = run.loader->next()) batches.push_back(std::move(*batch));
      ASSERT_EQ(batches.size(), kWarmUp + kSteps);
      for (std::size_t i = 0; i < kWarmUp; ++i) run.train_step(batches[i]);
      const NoSynchronisation watch;
      for (std::size_t i = kWarmUp; i < batches.size(); ++i) {
        try {
          run.train_step(batches[i]);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "step " << i + 1 << " waits for the device: " << error.what();
          break;
        }
      }
    }
}

}  // namespace
}  // namespace trireme::tests

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  using trireme::comm::World;
  trireme::tests::the_world = World::start(trireme::detect_launch(), {.device = "auto"});
  const int failed = RUN_ALL_TESTS();
  trireme::tests::the_world.reset();
  return failed;
}
