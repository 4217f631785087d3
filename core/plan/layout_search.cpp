#include "core/plan/layout_search.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/base/error.h"
#include "core/base/verdict.h"
#include "core/nn/batch_statistics.h"

namespace trireme::plan {
namespace {

train::RunSetup prepare(train::RunConfig config, const Machine& machine, int ranks) {
  LaunchInfo info{.launcher = Launcher::launch, .rank = 0, .size = ranks};
  info.local_size = static_cast<int>(std::min<std::int64_t>(ranks, machine.ranks_per_host));
  config.run.device = "cpu";  // this process has no more
  return train::prepare_training(std::move(config), info, Log(/*rank=*/1));
}

}  // namespace

train::RunConfig with_root(const train::RunConfig& config, config::Table root) {
  // They have added their kinds.
  if (const auto run = root.tables.find("run"); run != root.tables.end()) run->second.entries.erase("extensions");
  auto out = train::from_table(std::move(root), config.kinds);
  out.run.extensions = config.run.extensions;
  return out;
}

train::RunConfig with_settings(const train::RunConfig& config, const Settings& settings) {
  auto root = config.root;
  if (settings.contains("parallel.dp")) {
    root.tables.erase("parallel");
    root.tables.erase("plugin");
    config::apply_override(root, "parallel.plugin=\"hybrid_parallel\"");
  }
  for (const auto& [key, value] : settings) config::apply_override(root, key + "=" + value);
  return with_root(config, std::move(root));
}

SearchResult search_layouts(const train::RunConfig& config, const Machine& machine, SearchOptions options) {
  const auto plain = options.keeps_layout ? prepare(config, machine, options.ranks)
                                          : prepare(with_settings(config, {{"parallel.dp", "1"}}), machine, 1);
  options.global_batch = plain.batch.global;
  options.keeps_microbatches = nn::has_batch_statistics(*plain.model.source().model);
  return search(options, [&](const Settings& settings) {
    try {
      return forecast(prepare(with_settings(config, settings), machine, options.ranks), machine);
    } catch (const std::exception&) {
      Forecast none;
      none.problem = verdict_on(std::current_exception()).message;
      return none;
    }
  });
}

}  // namespace trireme::plan
