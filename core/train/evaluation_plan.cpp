#include "core/train/evaluation_plan.h"

#include <fmt/format.h>

#include <numeric>

#include "core/base/text.h"

namespace trireme::train {

std::int64_t count_evaluations(std::int64_t total_steps, std::int64_t steps_per_epoch,
                               std::optional<std::int64_t> every) {
  const auto epochs = (total_steps + steps_per_epoch - 1) / steps_per_epoch;  // the last step ends the last one
  if (!every) return epochs;
  const auto before_last = total_steps - 1;
  // Every so many epochs, the end is a multiple of `every` too. (The least common multiple may exceed 64 bits.)
  const auto common_epochs = *every / std::gcd(*every, steps_per_epoch);
  return epochs + before_last / *every - before_last / steps_per_epoch / common_epochs;
}

void check_evaluations(const RunConfig& config, std::int64_t total_steps, std::int64_t steps_per_epoch) {
  const auto& train = config.train;
  const auto* section = config.root.table("train");
  if (train.eval_every && *train.eval_every > total_steps)
    config::fail(section, "eval_every",
                 fmt::format("has no effect, because the training has only {}; lower it, or remove it",
                             text::quantity(total_steps, "step")));
  if (!train.patience) return;
  const auto evaluations = count_evaluations(total_steps, steps_per_epoch, train.eval_every);
  if (*train.patience >= evaluations)
    config::fail(section, "patience",
                 fmt::format("has no effect, because the training has only {}, of which the first is always the best "
                             "so far; {}evaluate more often (train.eval_every), train longer, or remove it",
                             text::quantity(evaluations, "evaluation"), evaluations > 1 ? "lower it, " : ""));
}

}  // namespace trireme::train
