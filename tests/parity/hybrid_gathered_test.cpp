// Weights that are shared out too (zero_stage = 3), beside tensor parallelism and pipelines: what a rank holds and
// sends.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/nn/block.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

struct Row {
  std::string keys;
  std::int64_t tp = 1, pp = 1, micro_batch = 8, ahead = 0;
  std::int64_t gathers = 2;  ///< of all weights, for a microbatch
};

Case case_of(const Row& row) {
  return {.name = row.keys,
          .samples = 24,
          .micro_batch = row.micro_batch,
          .hidden = 60,
          .layers = 8,
          .plugin = fmt::format("zero_stage = 3\ntp_size = {}\npp_size = {}\n{}", row.tp, row.pp, row.keys),
          .precision = "fp32",
          .plugin_name = "hybrid_parallel",
          .tp = row.tp,
          .pp = row.pp};
}

/// Elements that this rank's stages have, its data-parallel peers' with them, and the most that one of their blocks
/// has.
struct Here {
  double all = 0, block = 0;
};

Here here(BoostedModel& model) {
  Here out;
  for (const auto& parameter : nn::declarations(model.module()))
    out.all += static_cast<double>(parameter.placement.local_numel());
  for (const auto& block : model.module().blocks()) {
    double elements = 0;
    for (const auto& value : block->parameters()) elements += value.is_meta() ? 0 : static_cast<double>(value.numel());
    out.block = std::max(out.block, elements);
  }
  return out;
}

// Bytes a rank and elements a microbatch; N ranks, P elements that the rank's stages have: P/N of weights, gradients
// and two moments each, and two blocks.
TEST(HybridGathered, MemoryAndTrafficAreTheFormulas) {
  const std::string chunks = "zero_bucket_size_in_m = 0.1\n";
  for (const auto& row : std::vector<Row>{{""},
                                          {"overlap_allgather = true", 1, 1, 8, 1},
                                          {"", 1, 1, 1},
                                          {"cpu_offload = true", 1, 1, 2},
                                          {chunks, 2, 1, 2},
                                          {"", 1, 2, 1},
                                          {"overlap_allgather = true", 1, 2, 1, 1},
                                          {"pp_style = \"gpipe\"", 1, 2, 1},
                                          {"pp_style = \"interleaved\"\nnum_model_chunks = 2", 1, 2, 1},
                                          {"pp_style = \"zb_h1\"", 1, 2, 1, 0, 3},
                                          {"pp_style = \"zbv\"", 1, 2, 1, 0, 3},
                                          {chunks, 2, 2, 1}}) {
    if (world().size() % (row.tp * row.pp) != 0) continue;
    const auto c = case_of(row);
    SCOPED_TRACE(fmt::format("tp {} pp {} micro {} {}", row.tp, row.pp, row.micro_batch, row.keys));
    Booster booster(world(), make_plugin(c), make_options(c));
    auto run = booster.boost(make_inputs(c));
    const auto n = static_cast<double>(booster.mesh().group("dp").size());
    const auto [all, block] = here(*run.model);
    run.loader->start_epoch(0);
    // The first step learns the order of the blocks.
    booster.train_step(run, *run.loader->next());
    const auto elements = [](const char* op) {
      const auto totals = world().ledger().totals();
      const auto found = totals.find({"dp", op});
      return found == totals.end() ? 0.0 : static_cast<double>(found->second.payload_elements);
    };
    const auto reduced = elements("reduce_scatter"), gathered = elements("all_gather");
    const auto batch = *run.loader->next();
    booster.train_step(run, batch);
    // Padding of chunks aside.
    EXPECT_NEAR(static_cast<double>(run.model->parameter_bytes()), 4 * all / n, 0.03 * 4 * all / n);
    EXPECT_NEAR(static_cast<double>(run.optimizer->gradient_bytes()), 4 * all / n, 0.03 * 4 * all / n);
    const bool offload = row.keys.find("offload") != std::string::npos;  // of masters too
    const double state = (offload ? 12 : 8) * all / n;
    EXPECT_NEAR(static_cast<double>(run.optimizer->state_bytes()), state, 0.03 * state);
    EXPECT_EQ(run.optimizer->host_state_bytes(), offload ? run.optimizer->state_bytes() : 0);
    const auto peak = static_cast<double>(run.model->peak_gathered_bytes());
    EXPECT_GE(peak, 4 * block * static_cast<double>(1 + row.ahead));
    EXPECT_LE(peak, 1.03 * 4 * block * static_cast<double>(1 + row.ahead));
    EXPECT_LT(peak, 4 * all);  // never the stage at once
    if (n == 1) continue;
    const auto k = static_cast<double>(batch.micro.size());
    EXPECT_NEAR(elements("reduce_scatter") - reduced, k * all, 0.03 * k * all);
    const auto got = elements("all_gather") - gathered;
    // Less what the next block still needs: one at each turn of a microbatch. The first stage has no input's gradient
    // to make first.
    const auto times = static_cast<double>(row.gathers), least = booster.mesh().coordinate("pp") == 0 ? 2 : times;
    EXPECT_LE(got, 1.03 * k * times * all);
    EXPECT_GE(got, k * (least * all - times * block));
  }
}

}  // namespace
}  // namespace trireme::tests
