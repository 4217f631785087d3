// Accelerator: checkpoints.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/accelerate/accelerate_state.h"
#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/booster/good_checkpoint.h"
#include "core/booster/run_state.h"
#include "core/nn/block.h"

namespace trireme {
namespace {

/// What must be the same in a resumed run, so that it gets the batches that follow.
nlohmann::json settings_of(const AcceleratorState& state) {
  nlohmann::json settings{{"seed", state.options.seed},
                          {"gradient_accumulation_steps", state.options.gradient_accumulation_steps},
                          {"loaders", state.loaders.size()},
                          {"schedule", state.schedule ? state.schedule->describe() : "none"}};
  for (std::size_t i = 0; i < state.loaders.size(); ++i) {
    const auto& loader = *state.loaders[i]->loader;
    const auto set = [&](const char* what, auto value) {
      settings[fmt::format("{} of loader {}", what, i + 1)] = value;
    };
    set("samples", loader.size());
    set("batch size over all ranks", loader.options().global_batch);
    set("shuffle", loader.options().shuffle);
    set("drop_last", loader.options().drop_last);
  }
  return settings;
}

constexpr const char* kSection = "accelerator";  ///< in TrainRecord::extra

}  // namespace

void Accelerator::save_state(const std::string& dir, std::int64_t keep) {
  auto& state = *state_;
  TRIREME_REQUIRE(keep >= 1, "Accelerator::save_state: keep = {}, but at least one checkpoint is kept", keep);
  auto& run = state.prepared();
  TRIREME_REQUIRE(!state.accumulates() || run.model->module().buffers().empty(),
                  "Accelerator::save_state() while gradients are accumulated: the batches since the last step have "
                  "changed the model's buffers (running statistics), and a resumed run would read them again; call it "
                  "after an optimizer.step() that makes a step, when sync_gradients() is true");
  auto contents = contents_of(run);
  contents.record.seed = static_cast<std::int64_t>(state.options.seed);
  contents.record.progress.global_step = run.step;
  auto positions = nlohmann::json::array();
  for (const auto& loader : state.loaders)
    positions.push_back({{"epoch", loader->stepped.epoch}, {"batch", loader->stepped.batch}});
  contents.record.extra[kSection] = {
      {"settings", settings_of(state)}, {"schedule_step", state.schedule_step}, {"loaders", positions}};
  checkpoint::save_checkpoint(dir, contents, keep, state.booster->mesh());
}

bool Accelerator::load_state(const std::string& dir) {
  auto& state = *state_;
  auto& run = state.prepared();
  const auto folder = newest_checkpoint(state.world, run, NeedsBest::no, dir, state.log).folder;
  if (folder.empty()) return false;
  const checkpoint::Checkpoint stored(folder, checkpoint::Verify::sizes);
  const auto& extra = stored.record().extra;
  if (!extra.contains(kSection))
    throw CheckpointError(
        fmt::format("{}: was not saved by Accelerator::save_state(); to start from its weights, pass "
                    "ModelSource{{.weights = \"{}\"}} to prepare()",
                    folder, folder));
  const auto& saved = extra.at(kSection);
  const auto settings = settings_of(state);
  for (const auto& [what, now] : settings.items()) {
    const auto before = saved.at("settings").value(what, nlohmann::json());
    if (before != now)
      throw CheckpointError(
          fmt::format("{}: {} is {}, but {} in the checkpoint; restore it, and prepare the same objects in the same "
                      "order (with split_batches, the batches do not depend on the number of ranks)",
                      folder, what, json_text(now), json_text(before)));
  }
  restore(run, stored, state.log);
  state.schedule_step = saved.at("schedule_step").get<std::int64_t>();
  for (std::size_t i = 0; i < state.loaders.size(); ++i) {
    const auto& position = saved.at("loaders").at(i);
    state.loaders[i]->set_position({.epoch = position.at("epoch"), .batch = position.at("batch")});
  }
  state.drop_unfinished();
  set_aside_damaged(state.world, dir, run.step);
  return true;
}

void Accelerator::save_model(const PreparedModel& /*model*/, const std::string& dir) {
  state_->prepared().save_model(dir);
}

}  // namespace trireme
