#include "core/comm/axes.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::comm {
const std::vector<AxisKind>& axis_kinds() {
  static const std::vector<AxisKind> kinds{
      {.name = "dp_outer",
       .title = "replicas of the partitioned state",
       .option = "extra_dp_size",
       .splits_samples = true,
       .sums_gradients = true,
       .sums_losses = true,
       .collectives = "all-reduces of partitioned gradients"},
      {.name = "dp",
       .title = "data-parallel ranks",
       .key = "dp",
       .splits_samples = true,
       .sums_gradients = true,
       .partitions_state = true,
       .sums_losses = true,
       .collectives = "all-reduces of gradients; with ZeRO reduce-scatters of gradients and all-gathers of weights"},
      {.name = "pp",
       .title = "pipeline ranks",
       .key = "pp",
       .option = "pp_size",
       .sums_losses = true,
       .splits_model = true,
       .collectives = "sends and receives of activations and their gradients between neighbouring stages"},
      {.name = "sp",
       .title = "sequence-parallel ranks",
       .key = "sp",
       .option = "sp_size",
       .sums_gradients = true,
       .partitions_state = true,
       .collectives = "all-to-alls of heads, or keys and values around a ring; gradients as along dp"},
      {.name = "tp",
       .title = "tensor-parallel ranks",
       .key = "tp",
       .option = "tp_size",
       .splits_model = true,
       .collectives = "all-reduces of activations in each layer; with sequence parallelism all-gathers and "
                      "reduce-scatters"},
  };
  return kinds;
}

Axis::Axis(const std::string& name, int ranks) : size(ranks) {
  const auto& kinds = axis_kinds();
  const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const AxisKind& row) { return row.name == name; });
  if (found == kinds.end()) {
    std::vector<std::string> names;
    for (const auto& row : kinds) names.push_back(row.name);
    throw ConfigError(
        fmt::format("\"{}\" is not the name of an axis (known: {}){}; an axis of your own needs a "
                    "comm::AxisKind",
                    name, text::join(names), text::did_you_mean(name, names)));
  }
  kind = *found;
}

}  // namespace trireme::comm
