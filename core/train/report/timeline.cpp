#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/files/files.h"
#include "core/base/json_parse.h"
#include "core/base/trace.h"
#include "core/checkpoint/shared_errors.h"
#include "core/comm/host_values.h"
#include "core/resume/run_folder.h"
#include "core/train/callbacks.h"

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

/// The offset to add to this rank's steady clock (trace::now(), seconds) to get rank 0's: that of each machine starts
/// at a different time. Accurate to half the fastest of several round trips. Collective.
// Cristian, "Probabilistic clock synchronization", 1989: rank 0's clock is assumed to have been read half way through
// the fastest round trip.
double clock_offset(const comm::World& world) {
  constexpr int kRounds = 8;
  double offset = 0;
  const auto& group = world.group();
  auto time = at::zeros({1}, at::kDouble);  // on the CPU, so that recv() waits for the message, also over NCCL
  for (int other = 1; other < world.size(); ++other) {
    double fastest = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      if (world.rank() == 0) {
        group.recv(time, other);
        time.fill_(trace::now());
        group.send(time, other);
      } else if (world.rank() == other) {
        const double asked = trace::now();
        group.send(time, 0);
        group.recv(time, 0);
        const double there = time.item<double>(), answered = trace::now();
        if (answered - asked >= fastest) continue;
        fastest = answered - asked;
        offset = there - (asked + answered) / 2;
      }
    }
  }
  return offset;
}

/// Rank 0 writes the spans of all ranks. Collective.
void write_trace(const comm::Mesh& mesh, const std::string& path) {
  const auto spans = trace::stop();
  auto& world = mesh.world();
  const auto mine = events_of(mesh, spans, clock_offset(world)).dump();
  const auto all = comm::gather_text(world.group(), mine);
  checkpoint::on_first_rank(world, [&] {
    auto events = json::array();
    for (const auto& text : all)
      for (auto& event : parse_json(text)) events.push_back(std::move(event));
    write_file(path, json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump());
  });
}

class Timeline final : public RunCallback {
 public:
  explicit Timeline(int columns) : columns_(columns) {}

  void on_start(RunContext& run) override {
    const auto steps = run.setup.batch.steps - run.state.at.global_step;
    first_ = std::clamp<std::int64_t>(steps - kTraced, 0, kWarmUp);
    count_ = std::clamp<std::int64_t>(steps, 1, kTraced);
  }
  void on_step_begin(RunContext& run) override {
    if (run.state.at.global_step - run.resumed_at == first_) trace::start(run.world.device());
  }
  /// After the last traced step the file is written. Collective.
  void on_step_end(RunContext& run, const StepEnd& /*step*/) override {
    if (run.state.at.global_step - run.resumed_at != first_ + count_) return;
    const auto path = fmt::format("{}/{}", run.folder->dir(), kTimelineFile);
    write_trace(run.booster.mesh(), path);
    auto picture = run.boosted.model->chart(columns_ > 0 ? columns_ : 120);
    if (!picture.empty()) run.say("the last of the traced steps:\n" + picture.erase(picture.size() - 1));
    run.say(fmt::format("timeline  {} (for ui.perfetto.dev or chrome://tracing)", path));
  }

 private:
  int columns_;
  std::int64_t first_ = 0, count_ = 0;  ///< the traced steps, counted from the start of this run
};

}  // namespace

std::shared_ptr<RunCallback> timeline(int columns) { return std::make_shared<Timeline>(columns); }

}  // namespace trireme::train
