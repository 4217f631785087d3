#include "plugins/gemini/gemini.h"

#include <cmath>

#include "core/base/text.h"
#include "core/booster/plugin_entry.h"
#include "plugins/zero_options.h"
#include "zero/gemini/chunks.h"
#include "zero/gemini/gathered_model.h"
#include "zero/sharded_optimizer.h"

namespace trireme::plugins {
namespace {

Fields<GeminiOptions> make_fields() {
  using O = GeminiOptions;
  auto table =
      Fields<O>("plugin.gemini",
                "ZeRO stage 3. Keys that [train] has too may be written in either; the loss scale's in the one that "
                "says fp16.")
          .add(
              "chunk_config", &O::chunk_config,
              "A chunk is closed when it holds so many elements; no chunk spans two blocks. Unset: a size is searched.",
              {.min = 1})
          .add("min_chunk_size_m", &O::min_chunk_size_m, "The search begins here, in units of 2^20 elements.",
               {.max = 1e6, .above = 0})
          .add("search_range_m", &O::search_range_m, "How far the search goes beyond, in units of 2^20 elements.",
               {.min = 0, .max = 1e6})
          .add("hidden_dim", &O::hidden_dim, "The step of the search, in elements: the model's width is a good one.",
               {.min = 64})
          .add("shard_param_frac", &O::shard_param_frac,
               "The part of the weights that is shared out; the rest stays whole on every rank: less traffic, more "
               "memory.",
               {.min = 0, .max = 1})
          .add("offload_optim_frac", &O::offload_optim_frac,
               "The part of masters and optimizer state that is kept, and updated, in host memory.",
               {.min = 0, .max = 1})
          .add("offload_param_frac", &O::offload_param_frac,
               "The part of the weights whose slices are kept in host memory; at most offload_optim_frac and "
               "shard_param_frac.",
               {.min = 0, .max = 1})
          .add("max_prefetch", &O::max_prefetch, "Blocks whose weights are sent for before they are needed.",
               {.min = 0, .max = 1024})
          .add("master_weights", &O::master_weights,
               "bf16 and fp16: update fp32 copies of the weights; false: the 16-bit weights themselves, with 16-bit "
               "state, "
               "which is too narrow for Adam in fp16.")
          .add("force_outputs_fp32", &O::force_outputs_fp32,
               "bf16 and fp16: the criterion gets the model's outputs in fp32; false: in 16 bits.")
          .add("strict_ddp_mode", &O::strict_ddp_mode, "Every rank keeps all weights, as shard_param_frac = 0 does.")
          .add("enable_gradient_accumulation", &O::enable_gradient_accumulation,
               "With several microbatches a step, hold whole gradients and reduce once, for less traffic and more "
               "memory; false: reduce after each.")
          .add("enable_async_reduce", &O::enable_async_reduce,
               "Reduce each full chunk while the backward pass goes on; false: all of them when it has ended.")
          .add("extra_dp_size", &O::extra_dp_size,
               "So many groups of ranks that each share out a copy of their own: more memory, less traffic far away.",
               {.min = 1})
          .add("verbose", &O::verbose, "Print each chunk: what is in it and how much of it a rank owns.");
  add_train_options(table);
  return table;
}

}  // namespace

const Fields<GeminiOptions>& gemini_fields() {
  static const auto table = make_fields();
  return table;
}

std::vector<zero::Residence> homes_of(const std::vector<zero::Bucket>& chunks, const GeminiOptions& o) {
  double total = 0, before = 0, trained = 0, trained_before = 0;
  for (const auto& chunk : chunks) {
    total += static_cast<double>(chunk.layout.payload());
    if (chunk.trained) trained += static_cast<double>(chunk.layout.payload());
  }
  const double stays = o.strict_ddp_mode ? 1 : 1 - o.shard_param_frac;
  std::vector<zero::Residence> homes;
  for (const auto& chunk : chunks) {
    const auto size = static_cast<double>(chunk.layout.payload());
    // A chunk goes where most of it belongs. Frozen ones have no optimizer state to offload.
    const double middle = (before + size / 2) / total, trained_middle = (trained_before + size / 2) / trained;
    before += size;
    if (chunk.trained) trained_before += size;
    zero::Residence home{.stays = middle < stays};
    home.offload_master = chunk.trained && 1 - trained_middle < o.offload_optim_frac;
    home.offload_part = !home.stays && home.offload_master && 1 - middle < o.offload_param_frac;
    homes.push_back(home);
  }
  return homes;
}

void Gemini::configure(const config::Table* section) {
  options_ = config::read(section, gemini_fields());
  const auto& o = options_;
  const auto written = [&](const char* key) { return section != nullptr && section->find(key) != nullptr; };
  const auto refuse = [&](bool wrong, const char* key, const std::string& why) {
    if (wrong) config::fail(section, key, why);
  };
  refuse(o.offload_param_frac > o.offload_optim_frac, "offload_param_frac",
         fmt::format("is more than offload_optim_frac = {}: weights in host memory are updated there, so their "
                     "optimizer state must be there too; raise offload_optim_frac to {}",
                     o.offload_optim_frac, o.offload_param_frac));
  refuse(o.offload_param_frac > o.shard_param_frac, "offload_param_frac",
         fmt::format("is more than shard_param_frac = {}: weights that stay on every rank cannot be in host memory; "
                     "lower it to {}",
                     o.shard_param_frac, o.shard_param_frac));
  refuse(o.strict_ddp_mode && (written("shard_param_frac") || o.offload_param_frac > 0), "strict_ddp_mode",
         "keeps all weights on every rank, and shard_param_frac or offload_param_frac says otherwise; set only one");
  refuse(o.max_prefetch > 0 && (o.strict_ddp_mode || o.shard_param_frac == 0), "max_prefetch",
         "changes nothing where all weights stay on every rank; remove it");
  for (const char* key : {"search_range_m", "min_chunk_size_m", "hidden_dim"})
    refuse(o.chunk_config && written(key), key, "changes nothing when chunk_config gives the size; remove one of them");
}

void Gemini::check(const config::RunConfig& config, int world_size) const {
  const auto* section = config.plugin_table(name());
  check_zero_options(section, options_, config.train.precision, world_size);
  if (!options_.force_outputs_fp32 && !is_half(config.train.precision))
    config::fail(section, "force_outputs_fp32",
                 fmt::format("changes nothing in {}; remove it, or choose bf16 or fp16", config.train.precision));
}

std::vector<std::pair<std::string, int>> Gemini::axes(int world_size) const {
  return zero_axes(options_.extra_dp_size, world_size);
}

BoostResult Gemini::boost(ModelSource source, const BoostOptions& given, comm::Mesh& mesh, const Log& log) {
  const auto options = with_section(*this, options_, given);
  const zero::GradGroups groups{mesh.group("dp"), mesh.group("dp_outer"), mesh.group(data_axes())};
  const int parts = groups.shards.size();
  const auto device = mesh.world().device();
  zero::freeze(*source.model, options.optimizer);
  const zero::ChunkSearch search{mebi(options_.min_chunk_size_m),
                                 options_.search_range_m == 0 ? 0 : mebi(options_.search_range_m), options_.hidden_dim};
  const auto elements =
      options_.chunk_config ? *options_.chunk_config : zero::search_chunk_elements(*source.model, search, parts);
  auto chunks = zero::plan_chunks(*source.model, elements, parts);
  auto homes = homes_of(chunks, options_);
  const auto count = chunks.size();
  auto weights = zero::make_weights(source, options, options_.master_weights, std::move(chunks), std::move(homes),
                                    groups, device, log);
  const zero::ShardedOptions sharded{.partition_gradients = true,
                                     .overlap_reduce = options_.enable_async_reduce,
                                     .hold_gradients = options_.enable_gradient_accumulation,
                                     .outputs_fp32 = options_.force_outputs_fp32};
  auto model = std::make_unique<zero::GatheredModel>(source.model, std::move(weights), options, sharded, groups, device,
                                                     static_cast<std::size_t>(options_.max_prefetch));
  model->note(fmt::format("a rank owns 1/{} of {} parameters, in {} chunks", parts,
                          text::thousands(nn::parameter_count(*source.model)), count));
  if (options_.enable_gradient_accumulation)
    model->note("whole gradients are held over the microbatches of a step, and reduced once");
  if (options_.verbose)
    for (const auto& line : model->flat().describe()) log.note("{}", line);
  auto optimizer = std::make_unique<zero::ShardedOptimizer>(*model, options, 2, mesh);
  return {std::move(model), std::move(optimizer)};
}

}  // namespace trireme::plugins

TRIREME_PLUGIN(trireme::plugins::Gemini)
