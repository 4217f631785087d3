#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/verdict.h"
#include "core/pipeline/schedules.h"
#include "core/pipeline/verifier.h"

namespace trireme::pipeline {

Schedules all_schedules() {
  Schedules schedules("pipeline schedule");
  schedules.add("gpipe", {[](int p, int m, int) { return gpipe(p, m); }});
  schedules.add("1f1b", {[](int p, int m, int) { return one_f_one_b(p, m); }});
  schedules.add("interleaved", {interleaved, 2, true});
  schedules.add("zb_h1", {[](int p, int m, int) { return zb_h1(p, m); }});
  schedules.add("zbv", {[](int p, int m, int) { return zbv(p, m); }, 2});
  return schedules;
}

static int chunks_of(const Plan& plan, const ScheduleKind& kind) {
  if (plan.chunks < 0)
    throw ConfigError(fmt::format("{} is not a valid number of chunks; leave the key out", plan.chunks));
  if (plan.chunks == 0 || plan.chunks == kind.chunks) return kind.chunks;
  if (plan.chunks > kind.chunks && kind.more_chunks) return plan.chunks;
  throw ConfigError(
      fmt::format("{} does not fit schedule {}, which has {}{} on each rank; leave the key out, or set "
                  "schedule = \"{}\"",
                  plan.chunks, plan.schedule, kind.chunks, kind.more_chunks ? " or more" : "",
                  plan.chunks == 1 ? "1f1b" : "interleaved"));
}

static std::string size_text(int ranks, int chunks, int microbatches) {
  return fmt::format("{} with {} each, and {} microbatch{}", text::quantity(ranks, "rank"),
                     text::quantity(chunks, "chunk"), microbatches, microbatches == 1 ? "" : "es");
}

/// What the plan's function returns. @throws ConfigError for what it throws, unless that has another cause
static Schedule call(const Plan& plan, const ScheduleKind& kind, int ranks, int microbatches, int chunks) try {
  return kind.make(ranks, microbatches, chunks);
} catch (...) {
  const auto mistake = mistake_of_extension(std::current_exception());
  if (!mistake) throw;
  throw ConfigError(
      fmt::format("the function that makes the schedule {} has failed for {}: {}; choose another schedule",
                  plan.schedule, size_text(ranks, chunks, microbatches), *mistake));
}

Schedule make_schedule(const Plan& plan, int ranks, int microbatches) {
  const auto& kind = plan.known.at(plan.schedule);
  const int chunks = chunks_of(plan, kind);
  if (microbatches < 1)
    throw ConfigError(fmt::format("{} microbatches; give 1 or more (for a small bubble, several times the {} ranks)",
                                  microbatches, ranks));
  auto out = call(plan, kind, ranks, microbatches, chunks);
  out.name = plan.schedule;
  auto violation = verify(out);
  const auto wanted = size_text(ranks, chunks, microbatches), made = size_text(out.ranks, out.chunks, out.microbatches);
  if (made != wanted) violation = "it is for " + made;
  if (!violation.empty())
    throw ConfigError(
        fmt::format("the schedule {} is wrong for {}: {}; choose another one, or mend the function that makes it",
                    plan.schedule, wanted, violation));
  return out;
}

Schedule forward_only(const Schedule& schedule) {
  auto out = schedule;
  out.name += ", forward only";
  for (auto& actions : out.actions)
    std::erase_if(actions, [](const Action& action) { return action.op != Op::forward; });
  return out;
}

}  // namespace trireme::pipeline
