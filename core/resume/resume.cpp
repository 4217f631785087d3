#include "core/resume/resume.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_text.h"
#include "core/booster/run_state.h"
#include "core/checkpoint/checkpoint_files.h"
#include "core/checkpoint/shared_errors.h"
#include "core/resume/export.h"
#include "core/resume/run_folder.h"
#include "core/resume/same_training.h"
#include "core/setup/export_texts.h"

namespace trireme::train {
namespace {

/// Without values that are not finite, which JSON cannot store.
nlohmann::json record_of(const Evaluated& e) {
  nlohmann::json out{{"epoch", e.epoch}, {"step", e.step}};
  for (const auto& [name, value] : e.values)
    if (std::isfinite(value)) out[name] = value;
  return out;
}

Evaluated evaluated(const nlohmann::json& from, const std::string& path) {
  Evaluated out{checkpoint::count_in(from, "epoch", path), checkpoint::count_in(from, "step", path), {}};
  for (const auto& [name, value] : from.items())
    if (name != "epoch" && name != "step" && value.is_number()) out.values[name] = value.get<double>();
  return out;
}

/// The state that checkpoint_of() has put into the record, from the file `path`. @throws CheckpointError
TrainerState state_of(const checkpoint::TrainRecord& record, const std::string& path) {
  const auto& extra = record.extra;
  try {
    TrainerState state{
        record.progress,
        evaluated(extra.at("best"), path),
        evaluated(extra.at("last"), path),
        checkpoint::count_in(extra, "skipped", path),
        extra.contains("evaluations_since_best") ? checkpoint::count_in(extra, "evaluations_since_best", path) : 0,
        extra.value("evaluation_pending", false),
        {},
        numbers_state(extra.value("numbers", nlohmann::json()))};
    if (extra.contains("epoch_loss")) {  // older versions did not save it
      const auto& loss = extra.at("epoch_loss");
      state.epoch_loss = {loss.at(0), loss.at(1)};
    }
    return state;
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: not a valid training state: {}", path, json_problem(error)));
  }
}

}  // namespace

nlohmann::json to_json(const NumbersState& state) {
  return {{"left_out", state.left_out}, {"series", state.series}, {"bad_losses", state.bad_losses},
          {"skips", state.skips},       {"losses", state.losses}, {"returned_to", state.returned_to},
          {"returns", state.returns}};
}

NumbersState numbers_state(const nlohmann::json& stored) {
  if (stored.is_null()) return {};
  return {stored.at("left_out"),
          stored.at("series"),
          stored.at("bad_losses"),
          stored.at("skips"),
          stored.at("losses"),
          stored.value("returned_to", std::int64_t{-1}),
          stored.value("returns", std::int64_t{0})};
}

checkpoint::CheckpointContents checkpoint_of(const RunSetup& setup, const RunFolder& folder, Boosted& run,
                                             const TrainerState& state, const BestModel& best) {
  auto contents = contents_of(run);
  contents.record.progress = state.at;
  contents.record.seed = setup.config.run.seed;
  contents.record.config = folder.config_toml();
  contents.record.extra = {{"best", record_of(state.best)},
                           {"last", record_of(state.last)},
                           {"skipped", state.skipped},
                           {"evaluations_since_best", state.evaluations_since_best},
                           {"evaluation_pending", state.evaluation_pending},
                           {"epoch_loss", {state.epoch_loss.sum, state.epoch_loss.weight}},
                           {"numbers", to_json(state.numbers)},
                           {"data", data_facts(setup)}};
  contents.texts = model_texts(setup);
  contents.most_file_bytes = static_cast<std::uint64_t>(setup.config.run.checkpoint_shard_mb) << 20;
  contents.best = best.file();
  contents.best_digest = best.digest();
  return contents;
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

bool restore_run(const RunSetup& setup, Boosted& run, TrainerState& state, BestModel& best,
                 const GoodCheckpoint& from) {
  const checkpoint::Checkpoint stored(from.folder, checkpoint::Verify::sizes);
  auto restored = state_of(stored.record(), path_in(from.folder, checkpoint::kState));
  restore(run, stored, run.booster->log());
  state = std::move(restored);
  const bool is_evaluated = !state.evaluation_pending && state.last.step == state.at.global_step;
  if (!setup.plan.keeps_best) return is_evaluated;
  // By the manifest, which every rank has, unlike the file.
  const bool has_best = stored.best_digest().bytes > 0 && from.best_damage.empty();
  if (!from.best_damage.empty())
    run.booster->log().warn(
        "{}: no checkpoint has intact best weights ({}); those of step {} are lost, and the best ones are chosen from "
        "the evaluations from here on",
        from.folder, from.best_damage, state.best.step);
  if (!has_best) {  // the search for the best weights starts again
    state.best = state.last = {};
    state.evaluations_since_best = 0;
  }
  if (has_best)
    best.take(run.booster->world(), stored.best(), stored.best_digest());
  else
    best.take(run.booster->world(), "", {});
  return is_evaluated;
}

std::string resume(const RunSetup& setup, RunFolder& folder, Boosted& run, TrainerState& state, BestModel& best) {
  const auto& world = run.booster->world();
  const auto from = find_good_checkpoint(
      world, run, needs_best(setup), folder.resume_point().from,
      [&](const std::string& /*folder*/, const checkpoint::Damage& damage) {
        folder.look_further(setup, damage);
        return folder.resume_point().from;
      },
      run.booster->log());
  if (from.folder.empty()) return "";
  const bool is_evaluated = restore_run(setup, run, state, best, from);
  checkpoint::on_first_rank(world, [&] { folder.go_on(state.at.global_step, is_evaluated); });
  return from.folder;
}

}  // namespace trireme::train
