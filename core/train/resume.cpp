#include "core/train/resume.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/booster/run_state.h"
#include "core/checkpoint/files.h"
#include "core/comm/text.h"
#include "core/train/export.h"
#include "core/train/pretrained.h"
#include "core/train/resume_compatibility.h"
#include "core/train/run_folder.h"

namespace trireme::train {
namespace {

/// Without values that are not finite, which JSON cannot store.
nlohmann::json record_of(const Evaluated& e) {
  nlohmann::json out{{"epoch", e.epoch}, {"step", e.step}};
  for (const auto& [name, value] : e.values)
    if (std::isfinite(value)) out[name] = value;
  return out;
}

Evaluated evaluated(const nlohmann::json& from) {
  Evaluated out{from.at("epoch"), from.at("step"), {}};
  for (const auto& [name, value] : from.items())
    if (name != "epoch" && name != "step" && value.is_number()) out.values[name] = value.get<double>();
  return out;
}

constexpr const char* kDigest = "the training data (a digest)";
constexpr const char* kOldDigest = "names of the training images (a digest)";  // its name in older versions' records

/// Facts about the data that are not in the configuration.
nlohmann::json data_facts(const Prepared& p) {
  const auto& spec = p.data.info.spec;
  nlohmann::json facts{{"train samples", p.data.train->size()},
                       {"classes", text::join(spec.class_names)},
                       {kDigest, p.data.info.digest}};
  for (const auto* tensors : {&spec.inputs, &spec.targets})
    for (const auto& tensor : *tensors) facts["shape of " + tensor.name] = tensor.shape;
  return facts;
}

/// The precision in which a run updates and stores its weights, according to its resolved configuration, and the keys
/// that determine it.
std::pair<std::string, std::string> updated_in(const config::Table& run) {
  const auto precision = std::get<std::string>(run.table("train")->find("precision")->value);
  auto keys = fmt::format("train.precision = \"{}\"", precision);
  if (precision == "fp64") return {precision, keys};
  if (precision == "fp32" || precision == "tf32") return {"fp32", keys};
  // Half precision has fp32 master weights unless the plugin's options disable them.
  if (const auto* plugins = run.table("plugin"))
    for (const auto& [name, section] : plugins->tables)
      if (const auto* masters = section.find("master_weights")) {
        keys += fmt::format(", {}.master_weights = {}", section.path, config::to_toml(masters->value));
        if (masters->value == FieldValue(false)) return {precision, keys};
      }
  return {"fp32", keys};
}

void check_same_precision(const config::Table& now, const config::Table& before, const std::string& folder) {
  const auto [current, keys] = updated_in(now);
  const auto [there, keys_there] = updated_in(before);
  if (current != there)
    throw CheckpointError(
        fmt::format("{}: holds weights in {} ({}), but this run updates them in {} ({}). Restore that setting, or "
                    "start a new run from its weights: model.weights = \"{}\"",
                    folder, there, keys_there, current, keys, folder));
}

void check_same_training(const Prepared& p, const std::string& config_toml, const checkpoint::Checkpoint& stored,
                         ResumePoint& resume_point) {
  const auto& record = stored.record();
  const auto config = stored.folder() + "/config.toml";
  const auto now = config::parse_text(config_toml, "this run"), earlier = config::parse_text(record.config, config);
  auto found = differences(now, earlier);
  const auto facts = data_facts(p);
  auto before = record.extra.at("data");
  if (before.contains("pixels a side")) {  // an older version's record
    const auto side = before["pixels a side"];
    before["shape of pixel_values"] = {3, side, side};
    before["shape of labels"] = nlohmann::json::array();
    before.erase("pixels a side");
  }
  if (before.contains(kOldDigest)) {
    before[kDigest] = before[kOldDigest];
    before.erase(kOldDigest);
  }
  if (!before.contains(kDigest)) before[kDigest] = facts.at(kDigest);  // an older version did not record it
  auto all = before;
  all.update(facts);
  for (const auto& [what, unused] : all.items()) {
    const auto current = facts.value(what, nlohmann::json()), there = before.value(what, nlohmann::json());
    if (current != there)
      found.refused.push_back(fmt::format("{}: {} (it was {})", what, current.is_null() ? "none" : json_text(current),
                                          there.is_null() ? "none" : json_text(there)));
  }
  if (!found.refused.empty())
    throw CheckpointError(
        fmt::format("{}: this run cannot be resumed from it, because the order of the samples or the meaning of a step "
                    "would change: {}. Restore the old values, or start a new run from its weights: model.weights = "
                    "\"{}\"",
                    stored.folder(), text::join(found.refused), stored.folder()));
  check_same_precision(now, earlier, stored.folder());
  if (!found.reported.empty()) resume_point.notes.push_back(fmt::format("changed   {}", text::join(found.reported)));
}

/// A message that the run is complete and its results are in the folder; "" when anything is missing.
std::string nothing_left(const Prepared& p, const checkpoint::Checkpoint& stored) {
  const auto& at = stored.record().progress;
  const auto& dir = p.config.run.dir;
  if (!is_checkpoint_of(dir, stored.folder()) ||
      !(at.global_step >= p.total_steps || at.epoch >= p.config.train.epochs))
    return "";
  std::error_code none;
  const auto summary = (std::filesystem::path(dir) / "summary.json").string();
  if (!std::filesystem::exists(summary, none)) return "";
  const auto reported = nlohmann::json::parse(checkpoint::read_file(summary), nullptr, /*allow_exceptions=*/false);
  if (!reported.is_object() || reported.value("steps", std::int64_t{-1}) != at.global_step) return "";
  return fmt::format("resume    from {}: nothing is left to do, {}; raise train.epochs (or max_steps) to train further",
                     stored.folder(),
                     at.global_step == 1 ? "its one step is done"
                                         : fmt::format("all {} steps are done", text::thousands(at.global_step)));
}

}  // namespace

std::string save_state(const Prepared& prepared, const RunFolder& folder, Booster& booster, Boosted& run,
                       const TrainerState& state, const BestModel& best) {
  auto contents = contents_of(run);
  contents.record.progress = state.at;
  contents.record.seed = prepared.config.run.seed;
  contents.record.config = folder.config_toml();
  contents.record.extra = {
      {"best", record_of(state.best)},     {"last", record_of(state.last)},
      {"skipped", state.skipped},          {"evaluations_since_best", state.evaluations_since_best},
      {"numbers", to_json(state.numbers)}, {"data", data_facts(prepared)}};
  contents.texts = model_texts(prepared);
  contents.most_file_bytes = static_cast<std::uint64_t>(prepared.config.run.checkpoint_shard_mb) << 20;
  contents.best = best.file();
  contents.best_digest = best.digest();
  return checkpoint::save_checkpoint(folder.dir(), contents, prepared.config.run.keep_checkpoints, booster.mesh());
}

bool Evaluated::better_than(const Evaluated& other, const Metric& by) const {
  if (other.epoch == 0) return true;
  const auto value_of = [&](const Evaluated& of) {
    const auto found = of.values.find(by.name);
    return found == of.values.end() ? std::nan("") : found->second;
  };
  const double current = value_of(*this), there = value_of(other);
  if (!std::isfinite(current) || !std::isfinite(there)) return std::isfinite(current);
  return by.higher_is_better ? current > there : current < there;
}

static bool is_run_folder(const std::string& path) {
  std::error_code none;
  namespace fs = std::filesystem;
  const auto is_there = [&](const char* name) { return fs::exists(fs::path(path) / name, none); };
  return is_there("checkpoints") || (is_there("config.toml") && !is_there("manifest.json"));
}

void check_resume_point(const Prepared& p, const std::string& config_toml) {
  const auto& from = p.config.run.resume;
  if (from.empty() || from == "auto" || is_run_folder(from)) return;
  ResumePoint unused;
  check_same_training(p, config_toml, checkpoint::Checkpoint(from, checkpoint::Verify::sizes), unused);
}

ResumePoint find_resume_point(const Prepared& p, const std::string& config_toml) {
  ResumePoint resume_point{p.config.run.resume, {}};
  if (resume_point.from.empty()) return resume_point;
  const bool is_run = is_run_folder(resume_point.from);
  const bool newest = resume_point.from == "auto" || is_run;
  if (newest) resume_point.from = checkpoint::latest_checkpoint(is_run ? resume_point.from : p.config.run.dir, p.log);
  if (resume_point.from.empty() && is_run)
    throw CheckpointError(fmt::format("{}: this run has no complete checkpoint", p.config.run.resume));
  if (resume_point.from.empty()) {
    resume_point.notes.push_back(fmt::format("resume    no checkpoint in {}: a new run starts", p.config.run.dir));
    return resume_point;
  }
  // Every byte is verified against its checksum once; latest_checkpoint() has already verified the newest checkpoint.
  const checkpoint::Checkpoint stored(resume_point.from,
                                      newest ? checkpoint::Verify::sizes : checkpoint::Verify::content);
  check_same_training(p, config_toml, stored, resume_point);
  resume_point.done = nothing_left(p, stored);
  return resume_point;
}

void restore_run(const Prepared& prepared, Booster& booster, Boosted& run, TrainerState& state, BestModel& best,
                 const std::string& from) {
  const checkpoint::Checkpoint stored(from, checkpoint::Verify::sizes);
  const auto& record = stored.record();
  restore(run, stored, booster.log());
  state = {record.progress,
           evaluated(record.extra.at("best")),
           evaluated(record.extra.at("last")),
           record.extra.at("skipped"),
           record.extra.value("evaluations_since_best", std::int64_t{0}),
           numbers_state(record.extra.value("numbers", nlohmann::json()))};
  if (!prepared.plan.keeps_best) return;
  if (stored.best().empty()) {  // the search for the best weights starts again
    state.best = state.last = {};
    state.evaluations_since_best = 0;
  }
  best.take(booster, stored.best());
}

std::string resume(const Prepared& prepared, RunFolder& folder, Booster& booster, Boosted& run, TrainerState& state,
                   BestModel& best) {
  if (prepared.config.run.resume.empty()) return "";
  const auto& world = booster.mesh().world();
  const auto from = comm::broadcast_text(world.group(), world.device(), folder.resume_point().from);
  if (from.empty()) return "";
  restore_run(prepared, booster, run, state, best, from);
  folder.go_on(state.at.global_step);
  return from;
}

}  // namespace trireme::train
