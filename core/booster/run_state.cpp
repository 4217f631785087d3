#include "core/booster/run_state.h"

#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/version.h"
#include "core/checkpoint/adapters.h"
#include "core/checkpoint/sharded_tensors.h"
#include "core/checkpoint/storage.h"
#include "core/checkpoint/weights.h"
#include "core/comm/text.h"

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

/// The names of the parameters that only other ranks hold.
std::set<std::string> remote_parameters(Boosted& run) {
  std::set<std::string> names;
  for (const auto& parameter : nn::remote_declarations(run.model->module())) names.insert(parameter.name);
  return names;
}

/// Frozen weights may have the working dtype where trained ones have a master: their dtype depends on the layout.
std::set<std::string> frozen_parameters(Boosted& run) {
  std::set<std::string> names;
  for (const auto& parameter : nn::declarations(run.model->module()))
    if (!parameter.value.requires_grad()) names.insert(parameter.name);
  return names;
}

/// What a run restores of a checkpoint: this rank's slices of its groups of tensors.
class Restored {
 public:
  Restored(Boosted& run, const checkpoint::Checkpoint& stored);
  /// @throws CheckpointError when the checkpoint's tensors are not those of the run
  void check() const {
    for (const auto& g : groups_) checkpoint::check_slices(*g.file, g.slices, remote_, g.what, g.converted);
  }
  /// Verifies the bytes of those slices that the checkpoint has. @throws CheckpointError
  void verify() const;
  /// @pre check()
  void fill() {
    for (auto& g : groups_) checkpoint::fill_slices(*g.file, std::move(g.slices));
  }
  [[nodiscard]] bool lacks_buffers() const { return lacks_buffers_; }

 private:
  struct Group {
    const checkpoint::WeightsFile* file;
    const char* what;  ///< in messages
    std::vector<shard::Slice> slices;
    std::set<std::string> converted;  ///< see restore_slices()
  };
  std::vector<shard::Slice> state_of(Boosted& run, const checkpoint::WeightsFile& weights);

  std::set<std::string> remote_;  ///< names of tensors that other ranks restore
  std::vector<Group> groups_;
  bool lacks_buffers_ = false;
};

Restored::Restored(Boosted& run, const checkpoint::Checkpoint& stored) : remote_(remote_parameters(run)) {
  const auto frozen = frozen_parameters(run);
  groups_.push_back({&stored.weights(), "parameters", state_of(run, stored.weights()), frozen});
  groups_.push_back({&stored.optimizer(), "optimizer's tensors", run.optimizer->state(), {}});
  if (run.average && stored.average() != nullptr)
    groups_.push_back({stored.average(), "averaged weights", run.average->state(), frozen});
}

/// The weights, and the buffers unless the checkpoint was written before buffers were saved.
std::vector<shard::Slice> Restored::state_of(Boosted& run, const checkpoint::WeightsFile& weights) {
  auto buffers = nn::buffers(run.model->module());
  const auto remote_buffers = nn::remote_buffers(run.model->module());
  const auto stored = weights.names();
  const auto is_stored = [&](const shard::Slice& buffer) {
    return std::binary_search(stored.begin(), stored.end(), buffer.placement.name);
  };
  const bool stores_any = std::any_of(buffers.begin(), buffers.end(), is_stored) ||
                          std::any_of(remote_buffers.begin(), remote_buffers.end(), is_stored);
  lacks_buffers_ = !stores_any && !(buffers.empty() && remote_buffers.empty());
  auto state = run.model->weights();
  if (stores_any) std::move(buffers.begin(), buffers.end(), std::back_inserter(state));
  for (const auto& buffer : remote_buffers) remote_.insert(buffer.placement.name);
  return state;
}

void Restored::verify() const {
  for (const auto& group : groups_) {
    const auto stored = group.file->names();
    for (const auto& [placement, value] : group.slices)
      if (std::binary_search(stored.begin(), stored.end(), placement.name))
        group.file->verify(placement.name, placement);
  }
}

constexpr const char* kLossScale = "loss_scale";  ///< in the metadata of an optimizer's file

}  // namespace

void on_first_rank(const comm::World& world, const std::function<void()>& action) {
  std::string failed;
  try {
    if (world.rank() == 0) action();
  } catch (const CheckpointError& error) {
    failed = error.what();
  }
  failed = comm::broadcast_text(world.group(), world.device(), failed);
  if (!failed.empty()) throw CheckpointError(failed);
}

/// What a rank tells the others about its part of a checkpoint.
static nlohmann::json part_problem(const comm::World& world, Boosted& run, const std::string& folder) {
  nlohmann::json out{{"host", host_name()}, {"problem", ""}, {"is_missing", false}, {"manifest", 0}};
  try {
    const checkpoint::Checkpoint stored(folder, checkpoint::Verify::sizes);
    out["manifest"] = checkpoint::digest_file(folder + "/" + checkpoint::kManifest).crc32;
    Restored(run, stored).verify();
    stored.verify_best(world.rank(), world.size());
  } catch (const checkpoint::MissingPart& error) {
    out["problem"] = error.what();
    out["is_missing"] = true;
  } catch (const CheckpointError& error) {
    out["problem"] = error.what();
  }
  return out;
}

std::string find_damage(const comm::World& world, Boosted& run, const std::string& folder) {
  const auto mine = part_problem(world, run, folder);
  // Those of the first rank that has one: damage first, after which an older checkpoint is tried.
  std::string damage, missing;
  std::uint32_t manifest = 0;  // of rank 0
  for (const auto& text : comm::gather_text(world.group(), world.device(), json_text(mine))) {
    const auto of_rank = nlohmann::json::parse(text);
    const std::string host = of_rank.at("host"), problem = of_rank.at("problem");
    const std::uint32_t here = of_rank.at("manifest");
    if (manifest == 0) manifest = here;
    auto& found = of_rank.at("is_missing").get<bool>() ? missing : damage;
    if (!found.empty()) continue;
    if (!problem.empty())
      found = &found == &missing || host != mine.at("host") ? fmt::format("on host {}: {}", host, problem) : problem;
    else if (here != manifest)
      found = fmt::format("on host {}: {} is another checkpoint than that of rank 0", host, folder);
  }
  on_first_rank(world, [&] {  // nothing is damaged, so that no older one is better
    if (damage.empty() && !missing.empty()) throw CheckpointError(missing);
  });
  return comm::broadcast_text(world.group(), world.device(), damage);
}

std::string newest_checkpoint(const comm::World& world, Boosted& run, const std::string& dir, const Log& log) {
  checkpoint::Damages known;
  for (;;) {
    std::string found;
    on_first_rank(world, [&] { found = checkpoint::latest_checkpoint(dir, log, checkpoint::Verify::record, known); });
    found = comm::broadcast_text(world.group(), world.device(), found);
    if (found.empty()) return "";
    const auto damage = find_damage(world, run, found);
    if (damage.empty()) return found;
    known[found].why = damage;
  }
}

checkpoint::CheckpointContents contents_of(Boosted& run) {
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

void restore(Boosted& run, const checkpoint::Checkpoint& stored, const Log& log) {
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

std::string Booster::save(Boosted& run, const std::string& dir, std::int64_t keep) {
  TRIREME_REQUIRE(keep >= 1, "Booster::save: keep = {}, but at least one checkpoint is kept", keep);
  auto contents = contents_of(run);
  const auto steps = run.loader->steps_per_epoch();
  contents.record.progress = {.epoch = run.step / steps, .step_in_epoch = run.step % steps, .global_step = run.step};
  contents.record.seed = static_cast<std::int64_t>(options_.seed);
  const auto chosen = [](const auto& fields, const auto& options, const auto& factory) {
    return fmt::format("\n{}name = {}\n{}", config::print_section(fields, &options), config::to_toml(factory.name()),
                       config::print_rows(factory.fields(), factory.options()));
  };
  contents.record.config = config::print_section(train_fields(), &options_.train) +
                           chosen(optim::optimizer_fields(), options_.optimizer, options_.optimizer.method) +
                           optim::print_groups(options_.optimizer) +
                           chosen(optim::lr_schedule_fields(), options_.lr_schedule, options_.lr_schedule.curve);
  contents.record.extra = {{"order", order_of_samples(options_, run)}};
  return checkpoint::save_checkpoint(dir, contents, keep, *mesh_);
}

bool Booster::load(Boosted& run, const std::string& dir) {
  const auto folder = newest_checkpoint(world_, run, dir, log_);
  if (folder.empty()) return false;
  const checkpoint::Checkpoint stored(folder, checkpoint::Verify::sizes);
  const auto order = order_of_samples(options_, run), before = order_before(stored.record());
  for (const auto& [what, now] : order.items())
    if (before.at(what) != now)
      throw CheckpointError(
          fmt::format("{}: the order of the samples would change: {} is {}, but {} in the checkpoint; restore it, or "
                      "start a new run from its weights: ModelSource::weights = \"{}\"",
                      folder, what, json_text(now), json_text(before.at(what)), folder));
  restore(run, stored, log_);
  // Later checkpoints, which are damaged.
  if (checkpoint::find_storage(dir, world_).leads()) checkpoint::set_aside_after(dir, run.step);
  return true;
}

void Booster::save_model(Boosted& run, const std::string& dir, const std::map<std::string, std::string>& texts) {
  checkpoint::save_weights(dir, run.model->state_dict(), texts, *mesh_);
}

void Booster::load_model(Boosted& run, const std::string& folder_or_file) {
  std::vector<nn::Parameter> parameters;
  for (auto& [placement, value] : run.model->weights()) parameters.push_back({placement.name, value, placement});
  auto others = checkpoint::other_tensors(run.model->module());
  // A conversion is for the weights that the model started from; other tensors of the right shape are used unchanged.
  others.conversion = [convert = others.conversion](const std::string& name, at::IntArrayRef from, at::IntArrayRef to) {
    return from == to ? nn::Conversion{} : convert(name, from, to);
  };
  if (const auto adapters = checkpoint::find_adapters_alone(folder_or_file); !adapters.empty())
    checkpoint::load_adapters(adapters, parameters, log_, others);
  else
    checkpoint::load_weights(folder_or_file, parameters, "", log_, others);
  run.model->weights_changed();
  if (run.average) run.average->reset();
}

void Booster::save_optimizer(Boosted& run, const std::string& file) {
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (run.optimizer->scaler().enabled())
    metadata[kLossScale] = nlohmann::json(to_doubles(run.optimizer->scaler().state())).dump();
  checkpoint::write_slices(file, run.optimizer->state(), *mesh_, metadata);
}

void Booster::load_optimizer(Boosted& run, const std::string& file) {
  const checkpoint::SafeTensors stored(file);
  checkpoint::restore_slices(stored, run.optimizer->state(), remote_parameters(run), "optimizer's tensors");
  if (const auto scale = stored.metadata().find(kLossScale); scale != stored.metadata().end())
    restore_scaler(run.optimizer->scaler(), nlohmann::json::parse(scale->second).get<std::vector<double>>());
}

}  // namespace trireme
