#include "core/booster/run_state.h"

#include <fmt/format.h>
#include <torch/version.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/version.h"
#include "core/booster/good_checkpoint.h"
#include "core/booster/restored.h"
#include "core/checkpoint/shared_errors.h"
#include "core/checkpoint/weights/adapters.h"
#include "core/checkpoint/weights/model_folder.h"
#include "core/checkpoint/weights/weights.h"

namespace trireme {
namespace {

std::vector<double> to_doubles(const at::Tensor& tensor) {
  const auto host = tensor.to(at::kCPU, at::kDouble).contiguous();
  const auto* values = host.const_data_ptr<double>();
  return {values, values + host.numel()};
}

void restore_scaler(optim::LossScaler& scaler, const std::optional<std::vector<double>>& stored) {
  if (!scaler.enabled() || !stored) return;
  auto state = scaler.state();
  TRIREME_CHECK(static_cast<std::int64_t>(stored->size()) == state.numel(), "a stored loss scale has another shape");
  std::copy(stored->begin(), stored->end(), state.data_ptr<double>());
  scaler.set_state(state);
}

/// The values that determine the samples of each step; a resumed run must have the same.
nlohmann::json order_of_samples(const BoostOptions& options, const Boosted& run) {
  const auto& train = options.train;
  return {{"seed", options.seed},
          {"train.global_batch", train.global_batch},
          {"train.shuffle", train.shuffle},
          {"train.drop_last", train.drop_last},
          {"samples of the data set", run.loader->size()}};
}

/// The sample order of a checkpoint. One that `trireme train` saved has it only in its configuration.
nlohmann::json order_before(const checkpoint::TrainRecord& record) {
  if (const auto order = record.extra.find("order"); order != record.extra.end()) return *order;
  nlohmann::json order{{"seed", record.seed}};
  const auto config = config::parse_text(record.config, "config.toml");
  // The section also has keys of the command and of the task.
  const auto section = config::split_section(config::section_of(config, "train"), train_fields()).common;
  const auto train = config::read(&section, train_fields());
  order["train.global_batch"] = train.global_batch;
  order["train.shuffle"] = train.shuffle;
  order["train.drop_last"] = train.drop_last;
  order["samples of the data set"] = record.extra.at("data").at("train samples");
  return order;
}

constexpr const char* kLossScale = "loss_scale";  ///< in the metadata of an optimizer's file

}  // namespace

checkpoint::CheckpointContents contents_of(ModelAndOptimizer& run) {
  TRIREME_REQUIRE(
      !run.average || !run.average->in_use(),
      "a checkpoint holds the weights that are trained, but their average is in use; save it after the guard "
      "of use_average() has gone");
  checkpoint::CheckpointContents contents;
  if (run.optimizer->scaler().enabled()) contents.record.loss_scale = to_doubles(run.optimizer->scaler().state());
  contents.record.versions = {{"trireme", TRIREME_VERSION}, {"libtorch", TORCH_VERSION}};
  contents.weights = run.model->state_dict();
  contents.optimizer = run.optimizer->state();
  if (run.average) contents.average = run.average->state();
  return contents;
}

void restore(ModelAndOptimizer& run, const checkpoint::Checkpoint& stored, const Log& log) {
  Restored restored(run, stored);
  restored.check();
  if (restored.lacks_buffers())
    log.warn("{}: has none of the model's buffers (running statistics); they start from their initial values",
             stored.folder());
  restored.fill();
  run.model->weights_changed();
  restore_scaler(run.optimizer->scaler(), stored.record().loss_scale);
  if (run.average && stored.average() == nullptr) run.average->reset();  // the checkpoint's run had no average
  run.step = stored.record().progress.global_step;
}

std::string Boosted::save(const std::string& dir, std::int64_t keep) {
  TRIREME_REQUIRE(keep >= 1, "Boosted::save(): keep = {}, but at least one checkpoint is kept", keep);
  const auto& options = booster->options();
  auto contents = contents_of(*this);
  const auto steps = loader->steps_per_epoch();
  contents.record.progress = {.epoch = step / steps, .step_in_epoch = step % steps, .global_step = step};
  contents.record.seed = static_cast<std::int64_t>(options.seed);
  const auto chosen = [](const auto& fields, const auto& of, const auto& factory) {
    return fmt::format("\n{}name = {}\n{}", config::print_section(fields, &of), config::to_toml(factory.name()),
                       config::print_rows(factory.fields(), factory.options()));
  };
  contents.record.config = config::print_section(train_fields(), &options.train) +
                           chosen(optim::optimizer_fields(), options.optimizer, options.optimizer.method) +
                           optim::print_groups(options.optimizer) +
                           chosen(optim::lr_schedule_fields(), options.lr_schedule, options.lr_schedule.curve);
  contents.record.extra = {{"order", order_of_samples(options, *this)}};
  return checkpoint::save_checkpoint(dir, contents, keep, booster->mesh());
}

bool Boosted::load(const std::string& dir) {
  const auto folder = newest_checkpoint(booster->world(), *this, NeedsBest::no, dir, booster->log()).folder;
  if (folder.empty()) return false;
  const checkpoint::Checkpoint stored(folder, checkpoint::Verify::sizes);
  const auto order = order_of_samples(booster->options(), *this), before = order_before(stored.record());
  for (const auto& [what, now] : order.items())
    if (before.at(what) != now)
      throw CheckpointError(
          fmt::format("{}: the order of the samples would change: {} is {}, but {} in the checkpoint; restore it, or "
                      "start a new run from its weights: ModelSource::weights = \"{}\"",
                      folder, what, json_text(now), json_text(before.at(what)), folder));
  restore(*this, stored, booster->log());
  set_aside_damaged(booster->world(), dir, step);
  return true;
}

void ModelAndOptimizer::save_model(const std::string& dir, const std::map<std::string, std::string>& texts) {
  checkpoint::on_first_rank(booster->mesh().world(), [&] { checkpoint::check_own_model(dir); });
  checkpoint::save_weights(dir, model->state_dict(), texts, booster->mesh());
}

void ModelAndOptimizer::load_model(const std::string& folder_or_file) {
  std::vector<nn::Parameter> parameters;
  for (auto& [placement, value] : model->weights()) parameters.push_back({placement.name, value, placement});
  auto others = checkpoint::other_tensors(model->module());
  // A conversion is for the weights that the model started from; other tensors of the right shape are used unchanged.
  others.conversion = [convert = others.conversion](const std::string& name, at::IntArrayRef from, at::IntArrayRef to) {
    return from == to ? nn::Conversion{} : convert(name, from, to);
  };
  if (const auto adapters = checkpoint::find_adapters_alone(folder_or_file); !adapters.empty())
    checkpoint::load_adapters(adapters, parameters, booster->log(), others);
  else
    checkpoint::load_weights(folder_or_file, parameters, "", booster->log(), others);
  model->weights_changed();
  if (average) average->reset();
}

void ModelAndOptimizer::save_optimizer(const std::string& file) {
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (optimizer->scaler().enabled())
    metadata[kLossScale] = nlohmann::json(to_doubles(optimizer->scaler().state())).dump();
  checkpoint::write_slices(file, optimizer->state(), booster->mesh(), metadata);
}

void ModelAndOptimizer::load_optimizer(const std::string& file) {
  const checkpoint::SafeTensors stored(file);
  checkpoint::restore_slices(stored, optimizer->state(), remote_parameters(*this), "optimizer's tensors");
  if (const auto scale = stored.metadata().find(kLossScale); scale != stored.metadata().end())
    restore_scaler(optimizer->scaler(), parse_json(scale->second).get<std::vector<double>>());
}

}  // namespace trireme
