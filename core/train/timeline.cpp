#include "core/train/timeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>

#include "core/base/trace.h"
#include "core/checkpoint/files.h"
#include "core/comm/clock.h"
#include "core/comm/text.h"

namespace trireme::train {
namespace {

using nlohmann::json;

/// "rank 3 (pp 1, tp 1)"
std::string rank_name(const comm::Mesh& mesh) {
  std::vector<std::string> at;
  for (const auto& axis : mesh.axes())
    if (mesh.size(axis) > 1) at.push_back(fmt::format("{} {}", axis, mesh.coordinate(axis)));
  return fmt::format("rank {} ({})", mesh.world().rank(), fmt::join(at, ", "));
}

json named(const char* what, int rank, int lane, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}};
}

/// This rank's part of the file, in the Trace Event Format; times are in microseconds.
json events_of(const comm::Mesh& mesh, const std::vector<trace::Span>& spans, double offset) {
  const int rank = mesh.world().rank();
  auto events = json::array({named("process_name", rank, 0, rank_name(mesh))});
  std::map<std::string, int> lanes;
  for (const auto& [lane, name, begin, end] : spans) {
    const auto [at, fresh] = lanes.try_emplace(lane, static_cast<int>(lanes.size()));
    if (fresh) events.push_back(named("thread_name", rank, at->second, lane));
    events.push_back({{"ph", "X"},
                      {"name", name},
                      {"cat", lane},
                      {"pid", rank},
                      {"tid", at->second},
                      {"ts", (begin + offset) * 1e6},
                      {"dur", (end - begin) * 1e6}});
  }
  return events;
}

}  // namespace

Timeline::Timeline(comm::Mesh& mesh, std::string path, std::int64_t first, std::int64_t count)
    : mesh_(mesh), path_(std::move(path)), first_(first), count_(count) {}

void Timeline::begin(std::int64_t step) {
  if (step == first_) trace::start(mesh_.world().device());
}

bool Timeline::end(std::int64_t step) {
  if (step + 1 != first_ + count_) return false;
  write();
  return true;
}

void Timeline::write() {
  const auto spans = trace::stop();
  auto& world = mesh_.world();
  const auto mine = events_of(mesh_, spans, comm::clock_offset(world)).dump();
  const auto all = comm::gather_text(world.group(), world.device(), mine);
  if (all.empty()) return;
  auto events = json::array();
  for (const auto& text : all)
    for (auto& event : json::parse(text)) events.push_back(std::move(event));
  checkpoint::write_file(path_, json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump());
}

}  // namespace trireme::train
