#include "core/train/report/summary.h"

#include <fmt/ranges.h>
#include <sys/resource.h>
#include <torch/version.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/base/json_parse.h"
#include "core/base/memory.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/comm/host_values.h"
#include "core/resume/export.h"
#include "core/train/report/flop_rate.h"

namespace trireme::train {

/// Peak resident memory of this process so far, in bytes.
static std::int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{1024} * usage.ru_maxrss;
}

nlohmann::json rank_report(Boosted& run, const comm::World& world, std::int64_t samples) {
  nlohmann::json comm = nlohmann::json::object();
  for (const auto& [key, entry] : world.comm_stats().totals())
    comm[key.first][key.second] = {{"calls", entry.calls},
                                   {"payload_elements", entry.payload_elements},
                                   {"payload_bytes", entry.payload_bytes},
                                   {"wire_bytes", entry.wire_bytes}};
  const auto model = run.model->report();
  const auto optimizer = run.optimizer->report();
  return {{"rank", world.rank()},
          {"parameter_bytes", model.parameter_bytes},
          {"peak_gathered_bytes", model.peak_gathered_bytes},
          {"gradient_bytes", optimizer.gradient_bytes},
          {"optimizer_bytes", optimizer.state_bytes - optimizer.host_state_bytes},
          {"optimizer_host_bytes", optimizer.host_state_bytes},
          {"average_bytes", run.average ? run.average->bytes() : 0},
          {"peak_tensor_bytes", memory::peak_of(world.device())},
          {"peak_rss_bytes", peak_rss_bytes()},
          {"samples", samples},
          {"comm", comm}};
}

AllSampleCounts count_samples(const data::Datasets& data, const comm::World& world,
                              std::vector<std::int64_t> (data::Dataset::*found)() const) {
  nlohmann::json mine = nlohmann::json::object();
  for (const auto& [name, split] :
       {std::pair{"train", data.train}, std::pair{"validation", data.validation}, std::pair{"test", data.test}})
    if (split) mine[name] = (*split.*found)();
  AllSampleCounts out;
  std::map<std::string, std::set<std::int64_t>> all;
  for (const auto& text : comm::gather_text(world.group(), mine.dump())) {
    auto& of_rank = out.by_rank.emplace_back();
    const auto parsed = parse_json(text);
    for (const auto& [name, samples] : parsed.items())
      for (const auto& number : samples) {
        ++of_rank[name];
        all[name].insert(number.get<std::int64_t>());
      }
  }
  for (const auto& [name, samples] : all) out.distinct[name] = samples.size();
  return out;
}

namespace {

/// "validation accuracy 94.1 %, test 96.7 %; weights in runs/x/model"
std::string scores(const RunResult& o, const Evaluated& of, const std::optional<EvalResult>& test,
                   const std::vector<std::string>& folders) {
  const auto value = of.values.find(o.shown.name);  // the best weights' may be of a run that did not measure it
  auto line = fmt::format("validation {} {}", o.shown.label,
                          value == of.values.end() ? "not measured" : metric_text(o.shown, value->second));
  if (test) line += fmt::format(", test {}", metric_text(o.shown, test->value(o.shown.name)));
  if (!folders.empty()) line += fmt::format("; weights in {}", fmt::join(folders, " and "));
  return line;
}

/// {"validation_loss": ..., "validation_accuracy": ..., "test_loss": ..., ...}
nlohmann::json summary_of(const Evaluated& of, const std::optional<EvalResult>& test) {
  nlohmann::json out{{"epoch", of.epoch}};
  for (const auto& [name, value] : of.values) out["validation_" + name] = value;
  if (!test) return out;
  out["test_loss"] = test->loss;
  for (const auto& [metric, value] : test->metrics) out["test_" + metric.name] = value;
  return out;
}

/// "skipped   rank 0: 2 in train, 1 in test; rank 3: 1 in train"; "" when no rank skipped a sample.
std::string skipped_line(const std::vector<SampleCounts>& by_rank) {
  std::vector<std::string> ranks;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    std::vector<std::string> splits;
    for (const auto& [split, count] : by_rank[rank]) splits.push_back(fmt::format("{} in {}", count, split));
    if (!splits.empty()) ranks.push_back(fmt::format("rank {}: {}", rank, fmt::join(splits, ", ")));
  }
  return ranks.empty() ? "" : fmt::format("skipped   {}", fmt::join(ranks, "; "));
}

/// "exif      images that say they are turned or mirrored: 12 in train, 3 in validation (data.exif)"; "" for none.
std::string oriented_line(const SampleCounts& oriented) {
  std::vector<std::string> splits;
  for (const auto& [split, count] : oriented) splits.push_back(fmt::format("{} in {}", count, split));
  return splits.empty() ? ""
                        : fmt::format("exif      images that say they are turned or mirrored: {} (data.exif)",
                                      fmt::join(splits, ", "));
}

std::vector<std::string> weights_lines(const RunResult& o) {
  const auto& state = o.state;
  const auto model = fmt::format("{}/{}", o.run_dir, kExportedModel),
             best = fmt::format("{}/{}", o.run_dir, kBestModel);
  if (o.best_is_last())
    return {fmt::format("best      epoch {}, the last: {}", state.best.epoch,
                        scores(o, state.last, o.test, {model, best}))};
  const std::vector<std::string> last_folders = o.exports_best ? std::vector<std::string>{} : std::vector{model};
  const auto best_folders = o.exports_best ? std::vector{model, best} : std::vector{best};
  return {fmt::format("last      epoch {}: {}", state.last.epoch, scores(o, state.last, o.test, last_folders)),
          fmt::format("best      epoch {}{}: {}", state.best.epoch,
                      state.best.epoch == state.last.epoch ? fmt::format(", step {}", state.best.step) : std::string(),
                      scores(o, state.best, o.best_test, best_folders))};
}

}  // namespace

std::vector<std::string> closing_lines(const RunResult& o) {
  auto done = fmt::format("done in {:.1f} s", o.seconds);
  if (o.flops_per_s) done += ", " + rate_text(*o.flops_per_s, o.mfu());
  if (!o.stopped_by.empty()) done += fmt::format(", stopped by {}", o.stopped_by);
  if (o.state.skipped > 0)
    done += fmt::format(", {} skipped because a gradient was not finite", text::quantity(o.state.skipped, "step"));
  if (const auto left_out = o.state.numbers.left_out.size(); left_out > 0)
    done += fmt::format(", {} {} left out", left_out, left_out == 1 ? "batch" : "batches");
  for (const auto& [split, count] : o.skipped.distinct)
    done += fmt::format(", {} unreadable in {} skipped", count, split);
  std::vector<std::string> lines{done};
  for (auto line : {skipped_line(o.skipped.by_rank), oriented_line(o.oriented)})
    if (!line.empty()) lines.push_back(std::move(line));
  if (const auto times = o.times.text(); !times.empty()) lines.push_back("goodput   " + times);
  for (auto& line : weights_lines(o)) lines.push_back(std::move(line));
  return lines;
}

nlohmann::json run_summary(const RunResult& result, Booster& booster, const std::vector<std::string>& rank_reports) {
  const auto& state = result.state;
  const auto& world = booster.mesh().world();
  auto ranks = nlohmann::json::array();
  for (const auto& report : rank_reports) ranks.push_back(parse_json(report));
  for (std::size_t rank = 0; rank < ranks.size() && rank < result.skipped.by_rank.size(); ++rank)
    ranks[rank]["skipped_samples"] = result.skipped.by_rank[rank];
  nlohmann::json out{
      {"final", summary_of(state.last, result.test)},
      {"best", summary_of(state.best, result.best_is_last() ? result.test : result.best_test)},
      {"steps", state.at.global_step},
      {"stopped_by", result.stopped_by},
      {"finished", result.is_finished()},
      {"samples", state.at.samples},
      {"resumed_at_step", result.resumed_at},
      {"skipped_steps", state.skipped},
      {"left_out_steps", state.numbers.left_out},
      {"skipped_samples", result.skipped.distinct},
      {"oriented_images", result.oriented},
      {"seconds", result.seconds},
      {"times", to_json(result.times)},
      {"versions", {{"trireme", TRIREME_VERSION}, {"torch", TORCH_VERSION}, {"transport", world.transport()}}},
      {"world",
       {{"size", world.size()},
        {"launcher", world.info().text()},
        {"layout", booster.mesh().formula()},
        {"device", world.device().str()},
        {"plugin", booster.plugin().name()}}},
      {"ranks", ranks}};
  if (result.flops_per_s) out["flops_per_s"] = *result.flops_per_s;
  if (const auto mfu = result.mfu()) {
    out["mfu"] = *mfu;
    out["peak_flops_per_s"] = *result.peak_flops;
  }
  return out;
}

}  // namespace trireme::train
