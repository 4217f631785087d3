// What a prepared run passes on: its model, options, data and resolved configuration.
#include <utility>

#include "core/data/dataset_around.h"
#include "core/nn/block.h"
#include "core/nn/side_inputs.h"
#include "core/train/lora.h"
#include "core/train/prepare.h"

namespace trireme::train {
namespace {

/// A data set with a program's collator.
class CollatedDataset final : public data::DatasetAround {
 public:
  CollatedDataset(std::shared_ptr<data::Dataset> of, DataCollator collator)
      : DatasetAround(std::move(of)), collator_(std::move(collator)) {}
  [[nodiscard]] data::Sample collate(std::vector<data::Sample> samples,
                                     const std::vector<std::int64_t>& indices) override {
    return collator_(std::move(samples), indices);
  }
  /// Rows are batches already.
  [[nodiscard]] data::RowSamples* rows() override { return nullptr; }

 private:
  DataCollator collator_;
};

ModelSource source_of_kind(const Prepared& p) {
  ModelSource source{.weights = p.weights,
                     .adapters = p.adapters,
                     .head_prefix = p.kind->head_prefix(),
                     .policy = p.kind->policy(p.model_options.get())};
  source.make = [kind = p.kind, options = p.model_options, lora = p.config.lora, policy = source.policy] {
    std::shared_ptr<nn::Model> model = kind->make(options.get());
    if (lora) add_adapters(*model, *lora, kind->head_prefix(), policy);
    return model;
  };
  source.model = source.make();
  if (p.config.lora) source.options = adapter_options(*p.config.lora);
  for (const auto& field : p.kind->fields().fields)
    source.options["model." + field.key] = config::to_toml(field.get(p.model_options.get()));
  return source;
}

}  // namespace

std::shared_ptr<data::Dataset> RunPlan::collated(std::shared_ptr<data::Dataset> data) const {
  if (!collator || !data) return data;
  return std::make_shared<CollatedDataset>(std::move(data), collator);
}

ModelSource model_source(const Prepared& p) {
  auto source = p.plan.source ? p.plan.source() : source_of_kind(p);
  if (const auto problem = nn::unread_side_input(*source.model, p.data.info.spec); !problem.empty())
    config::fail(p.config.root.table("model"), "name", problem);
  if (!source.make) source.make = [make = p.plan.source] { return make().model; };
  source.options["model.name"] = p.config.model.name;
  source.options["train.task"] = p.task_kind.name();
  for (const auto& field : p.task_kind.make.fields().fields)
    source.options["train." + field.key] = config::to_toml(field.get(p.task_kind.make.options()));
  return source;
}

BoostOptions booster_options(const Prepared& p) {
  return {.train = p.config.train,
          .optimizer = p.config.optimizer,
          .lr_schedule = p.config.schedule,
          .loading = p.config.data,
          .seed = static_cast<std::uint64_t>(p.config.run.seed)};
}

BoostInputs training_inputs(const Prepared& p) {
  return {.source = model_source(p), .task = p.task, .data = p.data.train};
}

std::string resolved_toml(RunConfig c, const TaskKind* task, const Plugin& plugin, const std::string& model_rows) {
  // The plugin's section contains these settings in full.
  auto& parallel = c.parallel;
  for (auto& [key, size] : parallel.sizes)
    if (key != "dp") size.reset();
  parallel.zero.reset();
  for (auto* name : {&parallel.schedule, &parallel.sp_mode}) name->reset();
  return print(c, task, model_rows, config::print_section(plugin.fields(), plugin.options()));
}

}  // namespace trireme::train
