// The fields of [parallel], whose keys are those of the axes of all ranks (core/comm/axes.h).
#include <fmt/format.h>

#include "core/base/text.h"
#include "core/comm/axes.h"
#include "core/setup/run_config.h"

namespace trireme::train {

std::map<std::string, std::optional<std::int64_t>> ParallelSection::unset_sizes() {
  std::map<std::string, std::optional<std::int64_t>> sizes;
  for (const auto& kind : comm::axis_kinds())
    if (!kind.key.empty()) sizes[kind.key] = std::nullopt;
  return sizes;
}

static std::string size_text(const comm::AxisKind& kind) {
  return kind.option.empty()
             ? fmt::format(
                   "Number of {}. It follows from the number of ranks and the other keys; a value given here "
                   "is checked, so that a file cannot run in another layout by mistake.",
                   kind.title)
             : fmt::format("Number of {}; short for plugin.hybrid_parallel.{}.", kind.title, kind.option);
}

static std::string parallel_text() {
  std::vector<std::string> names, traffic;
  for (const auto& kind : comm::axis_kinds()) {
    names.push_back(kind.name);
    traffic.push_back(fmt::format("{}: {}", kind.name, kind.collectives));
  }
  return fmt::format("How the work is distributed over the ranks: ranks = {}. What ranks along an axis exchange: {}.",
                     text::join(names, " x "), text::join(traffic, "; "));
}

const Fields<ParallelSection>& parallel_fields() {
  using O = ParallelSection;
  static const auto table = [] {
    Fields<O> fields("parallel", parallel_text());
    fields.add("plugin", &O::plugin,
               "How the model is distributed over the ranks: the name of a built-in plugin, or the path of a .so. The "
               "plugin's options are in [plugin.NAME]. Unset: hybrid_parallel if this section has a key besides dp, "
               "else torch_ddp. \"auto\": the plan chooses the layout for the ranks, and keys of [train] and of this "
               "section that "
               "are unset; [plugin.NAME] has no effect then (docs/plan.md).",
               {.path = true, .path_ending = ".so"});
    for (const auto& kind : comm::axis_kinds())
      if (!kind.key.empty())
        fields.add(kind.key, [key = kind.key](O & section) -> auto& { return section.sizes.at(key); }, size_text(kind),
                   {.min = 1, .max = 4096});
    fields.add("schedule", &O::schedule, "The pipeline schedule; short for plugin.hybrid_parallel.pp_style.")
        .add("sp_mode", &O::sp_mode,
             "The mode of sequence parallelism; short for plugin.hybrid_parallel.sequence_parallelism_mode.")
        .add("zero", &O::zero, "ZeRO stage; short for plugin.hybrid_parallel.zero_stage.", {.min = 0, .max = 3});
    return fields;
  }();
  return table;
}

}  // namespace trireme::train
