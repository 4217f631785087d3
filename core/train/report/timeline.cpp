#include "core/train/report/timeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/files/files.h"
#include "core/base/json_parse.h"
#include "core/base/trace.h"
#include "core/checkpoint/shared_errors.h"
#include "core/comm/clock.h"
#include "core/comm/text.h"
#include "core/resume/run_folder.h"

namespace trireme::train {
namespace {

using nlohmann::json;

constexpr std::int64_t kWarmUp = 2, kTraced = 3;

/// "rank 3 (pp 1, tp 1)"
std::string rank_name(const comm::Mesh& mesh) {
  std::vector<std::string> at;
  for (const auto& axis : mesh.axes())
    if (mesh.size(axis) > 1) at.push_back(fmt::format("{} {}", axis, mesh.coordinate(axis)));
  return fmt::format("rank {} ({})", mesh.world().rank(), fmt::join(at, ", "));
}

json named(const char* what, int rank, int track, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", track}, {"args", {{"name", name}}}};
}

/// This rank's part of the file, in the Trace Event Format; times are in microseconds.
json events_of(const comm::Mesh& mesh, const std::vector<trace::Span>& spans, double offset) {
  const int rank = mesh.world().rank();
  auto events = json::array({named("process_name", rank, 0, rank_name(mesh))});
  std::map<std::string, int> tracks;
  for (const auto& [track, name, begin, end] : spans) {
    const auto [at, inserted] = tracks.try_emplace(track, static_cast<int>(tracks.size()));
    if (inserted) events.push_back(named("thread_name", rank, at->second, track));
    events.push_back({{"ph", "X"},
                      {"name", name},
                      {"cat", track},
                      {"pid", rank},
                      {"tid", at->second},
                      {"ts", (begin + offset) * 1e6},
                      {"dur", (end - begin) * 1e6}});
  }
  return events;
}

/// Rank 0 writes the spans of all ranks. Collective.
void write_trace(const comm::Mesh& mesh, const std::string& path) {
  const auto spans = trace::stop();
  auto& world = mesh.world();
  const auto mine = events_of(mesh, spans, comm::clock_offset(world)).dump();
  const auto all = comm::gather_text(world.group(), world.device(), mine);
  checkpoint::on_first_rank(world, [&] {
    auto events = json::array();
    for (const auto& text : all)
      for (auto& event : parse_json(text)) events.push_back(std::move(event));
    write_file(path, json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump());
  });
}

}  // namespace

void Timeline::on_start(RunContext& run) {
  const auto steps = run.setup.batch.steps - run.state.at.global_step;
  first_ = std::clamp<std::int64_t>(steps - kTraced, 0, kWarmUp);
  count_ = std::clamp<std::int64_t>(steps, 1, kTraced);
}

void Timeline::on_step_begin(RunContext& run) {
  if (run.state.at.global_step - run.resumed_at == first_) trace::start(run.world.device());
}

void Timeline::on_step_end(RunContext& run, const StepEnd& /*step*/) {
  if (run.state.at.global_step - run.resumed_at != first_ + count_) return;
  const auto path = fmt::format("{}/{}", run.folder->dir(), kTimelineFile);
  write_trace(run.booster.mesh(), path);
  auto picture = run.boosted.model->chart(columns_ > 0 ? columns_ : 120);
  if (!picture.empty()) run.say("the last of the traced steps:\n" + picture.erase(picture.size() - 1));
  run.say(fmt::format("timeline  {} (for ui.perfetto.dev or chrome://tracing)", path));
}

}  // namespace trireme::train
