#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/base/text.h"
#include "pipeline/schedule/schedules.h"

namespace trireme::pipeline {
namespace {

struct Known {
  const char* name;
  int chunks;  ///< number of chunks on each rank; 0: as many as requested
  Schedule (*make)(int ranks, int microbatches, int chunks);
};

const std::array kKnown{
    Known{"gpipe", 1, [](int p, int m, int) { return gpipe(p, m); }},
    Known{"1f1b", 1, [](int p, int m, int) { return one_f_one_b(p, m); }},
    Known{"interleaved", 0, [](int p, int m, int v) { return interleaved(p, m, v); }},
    Known{"zb_h1", 1, [](int p, int m, int) { return zb_h1(p, m); }},
    Known{"zbv", 2, [](int p, int m, int) { return zbv(p, m); }},
};

const Known& find(const std::string& name) {
  const auto found = std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& known) { return known.name == name; });
  if (found != kKnown.end()) return *found;
  const auto names = schedule_names();
  throw ConfigError(
      fmt::format("no schedule \"{}\" (known: {}){}", name, text::join(names), text::did_you_mean(name, names)));
}

void check_chunks(const Known& known, int chunks) {
  if (chunks < 0) throw ConfigError(fmt::format("{} is not a valid number of chunks; leave the key out", chunks));
  if (known.chunks == 0 && chunks == 0) throw ConfigError("is required with schedule interleaved; give 2 or more");
  if (known.chunks == 0 && chunks == 1)
    throw ConfigError("interleaved with 1 chunk is 1f1b; give 2 or more, or set schedule = \"1f1b\"");
  if (known.chunks != 0 && chunks != 0 && chunks != known.chunks)
    throw ConfigError(fmt::format("{} does not fit schedule {}, which has {} on each rank; leave the key out{}", chunks,
                                  known.name, known.chunks, chunks > 1 ? ", or set schedule = \"interleaved\"" : ""));
}

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> out;
  for (const auto& known : kKnown) out.emplace_back(known.name);
  return out;
}

Schedule make_schedule(const std::string& name, int ranks, int chunks, int microbatches) {
  const auto& known = find(name);
  check_chunks(known, chunks);
  if (microbatches < 1)
    throw ConfigError(fmt::format("{} microbatches; give 1 or more (for a small bubble, several times the {} ranks)",
                                  microbatches, ranks));
  return known.make(ranks, microbatches, chunks);
}

Schedule forward_only(const Schedule& schedule) {
  auto out = schedule;
  out.name += ", forward only";
  for (auto& actions : out.actions)
    std::erase_if(actions, [](const Action& action) { return action.op != Op::forward; });
  return out;
}

}  // namespace trireme::pipeline
