#include "core/train/training_arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/booster/task_wrapper.h"
#include "core/config/table.h"
#include "core/resume/resume_point.h"
#include "core/setup/deterministic.h"
#include "core/setup/plugin_sections.h"
#include "core/train/evaluate.h"

namespace trireme::train {
namespace {

/// What stands for the program's parts where a file has the name of a kind.
constexpr const char* kProgram = "program";

/// A task with further metrics.
class WithMetrics final : public TaskWrapper {
 public:
  WithMetrics(std::shared_ptr<const Task> task, std::vector<AddedMetric> added)
      : TaskWrapper(std::move(task)), added_(std::move(added)) {}
  [[nodiscard]] std::vector<Metric> metrics() const override {
    auto all = TaskWrapper::metrics();
    for (const auto& added : added_) all.push_back(added.metric);
    return all;
  }
  [[nodiscard]] std::vector<MetricSums> measure(const nn::Tensors& outputs, const data::Batch& batch) const override {
    auto all = TaskWrapper::measure(outputs, batch);
    for (const auto& added : added_) all.push_back(added.measure(outputs, batch));
    return all;
  }

 private:
  std::vector<AddedMetric> added_;
};

/// A task with a loss of the program's own, which may read the logits in any way.
class WithLoss final : public TaskWrapper {
 public:
  WithLoss(std::shared_ptr<const Task> task, decltype(TrainerInputs::loss) loss)
      : TaskWrapper(std::move(task)), loss_(std::move(loss)) {}
  [[nodiscard]] at::Tensor loss(const nn::Tensors& outputs, const data::Batch& batch,
                                const LossOptions& options) const override {
    return loss_(outputs, batch, options);
  }
  [[nodiscard]] bool takes_sharded_logits() const override { return false; }

 private:
  decltype(TrainerInputs::loss) loss_;
};

void check_arguments(const TrainingArguments& a, const TrainerInputs& inputs) {
  const auto refuse = [](const char* argument, const std::string& why) {
    throw ConfigError(fmt::format("TrainingArguments::{}: {}", argument, why));
  };
  if (a.output_dir.empty()) refuse("output_dir", "is empty; name a folder for the run");
  const std::pair<const char*, std::int64_t> counts[]{
      {"per_device_train_batch_size", a.per_device_train_batch_size},
      {"per_device_eval_batch_size", a.per_device_eval_batch_size},
      {"gradient_accumulation_steps", a.gradient_accumulation_steps},
      {"num_train_epochs", a.num_train_epochs},
      {"eval_steps", a.eval_steps},
      {"save_steps", a.save_steps},
      {"save_total_limit", a.save_total_limit},
      {"max_steps", a.max_steps.value_or(1)},
      {"early_stopping_patience", a.early_stopping_patience.value_or(1)}};
  for (const auto& [name, value] : counts)
    if (value < 1) refuse(name, fmt::format("{} must be at least 1", value));
  const bool evaluates = inputs.eval != nullptr && a.eval_strategy != Strategy::no;
  if (a.load_best_model_at_end && !evaluates)
    refuse("load_best_model_at_end", "needs evaluations: pass TrainerInputs::eval and an eval_strategy");
  if (a.early_stopping_patience && !a.load_best_model_at_end)
    refuse("early_stopping_patience", "needs load_best_model_at_end = true, which keeps the best weights");
  for (const auto& added : inputs.metrics) {
    const auto& name = added.metric.name;
    TRIREME_REQUIRE(added.measure != nullptr, "TrainerInputs::metrics: \"{}\" has no measure function", name);
    const auto taken = inputs.task ? inputs.task->metrics() : std::vector<Metric>();
    if (name == kLoss || std::any_of(taken.begin(), taken.end(), [&](const Metric& of) { return of.name == name; }))
      throw ConfigError(
          fmt::format("TrainerInputs::metrics: the task has a metric \"{}\" already; choose another name", name));
  }
  if (inputs.data_collator && inputs.train && !inputs.train->combined_targets().empty())
    throw ConfigError(
        "TrainerInputs::data_collator: the data set combines samples itself (mixup, cutmix), which needs its own "
        "batches; turn that off, or combine samples in the collator");
  if (a.save_strategy == Strategy::no && (a.on_nonfinite == "rollback" || a.on_loss_spike == "rollback"))
    refuse("save_strategy", "is no, but on_nonfinite or on_loss_spike = \"rollback\" returns to a checkpoint");
  TRIREME_REQUIRE(inputs.model && inputs.task && inputs.train,
                  "a Trainer needs a model, a task and training data, but one of them is not set in TrainerInputs");
}

RunConfig config_of(const TrainingArguments& a, bool evaluates) {
  RunConfig c;
  c.run.dir = a.output_dir;
  c.run.seed = a.seed;
  c.run.resume = a.resume_from_checkpoint.empty() ? kResumeNever : a.resume_from_checkpoint;
  c.run.checkpoint_every = a.save_strategy == Strategy::steps ? a.save_steps : 0;
  c.run.compare_replicas_every = a.compare_replicas_every;
  c.run.async_save = a.async_save;
  c.run.deterministic = a.deterministic;
  c.run.keep_checkpoints = a.save_strategy == Strategy::no ? 0 : a.save_total_limit;
  if (a.load_best_model_at_end) c.run.export_weights = "best";
  c.model.name = kProgram;
  static_cast<data::LoadingOptions&>(c.data) = a.dataloader;
  c.data.name = kProgram;
  c.train.epochs = a.num_train_epochs;
  c.train.max_steps = a.max_steps;
  c.train.precision = a.precision;
  c.train.max_norm = a.max_grad_norm;
  c.train.drop_last = a.dataloader_drop_last;
  c.train.on_nonfinite = a.on_nonfinite;
  c.train.max_nonfinite = a.max_nonfinite;
  c.train.loss_spike = a.loss_spike;
  c.train.on_loss_spike = a.on_loss_spike;
  c.train.recompute = a.recompute;
  c.train.micro_batch = a.per_device_train_batch_size;
  c.train.eval_batch = a.per_device_eval_batch_size;
  c.train.task = kProgram;
  c.train.patience = a.early_stopping_patience;
  if (evaluates && a.eval_strategy == Strategy::steps) c.train.eval_every = a.eval_steps;
  if (a.metric_for_best_model) c.train.best = "validation." + *a.metric_for_best_model;
  static_cast<optim::OptimizerOptions&>(c.optimizer) = {
      .lr = a.learning_rate, .weight_decay = a.weight_decay, .no_decay = a.no_decay, .method = a.optim};
  c.optimizer.name = a.optim.name();
  static_cast<optim::LrScheduleOptions&>(c.schedule) = {.warmup_ratio = a.warmup_ratio, .curve = a.lr_scheduler};
  c.schedule.name = a.lr_scheduler.name();
  c.parallel.plugin = a.plugin;
  return c;
}

}  // namespace

RunSetup prepare_program(comm::World& world, const TrainingArguments& a, const TrainerInputs& inputs) {
  check_arguments(a, inputs);
  const bool evaluates = inputs.eval != nullptr && a.eval_strategy != Strategy::no;
  RunSetup setup{.config = config_of(a, evaluates), .launch = world.info(), .log = Log(world.rank())};
  auto& config = setup.config;
  config.run.device = world.device().is_cpu() ? "cpu" : "cuda";
  make_deterministic(config, !world.device().is_cpu());
  setup.plan = {.evaluates_epochs = evaluates && a.eval_strategy == Strategy::epoch,
                .saves_epochs = a.save_strategy == Strategy::epoch,
                .keeps_best = a.load_best_model_at_end,
                .loads_best_at_end = a.load_best_model_at_end};
  setup.weights.path = inputs.model().weights;
  setup.plugin = load_plugin(a.plugin, a.plugin_options);
  copy_shared_options(*setup.plugin, train_section_fields(), &config.train);
  config::check_options(train_section_fields(), config.train);
  config.train.global_batch =
      a.per_device_train_batch_size * a.gradient_accumulation_steps * data_parallel_size(*setup.plugin, world.size());
  setup.plugin->check(settings_of(config, *setup.plugin, world.size()));
  setup.collator = inputs.data_collator;
  setup.data = {.info = {.spec = inputs.train->spec(), .source = kProgram},
                .train = collated(inputs.train, setup.collator),
                .validation = collated(inputs.eval, setup.collator),
                .test = collated(inputs.test, setup.collator)};
  auto task = inputs.task;
  if (inputs.loss) task = std::make_shared<WithLoss>(task, inputs.loss);
  if (!inputs.metrics.empty()) task = std::make_shared<WithMetrics>(task, inputs.metrics);
  setup.task =
      with_metrics(config, {.make = TaskFactory(kProgram, [task](const nn::DataSpec&) { return task; })}, task);
  setup.model = model_of_program(config, inputs.model, setup.task);
  finish_training_setup(setup);
  return setup;
}

}  // namespace trireme::train
