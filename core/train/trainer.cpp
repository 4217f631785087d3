#include "core/train/trainer.h"

#include <utility>

#include "core/checkpoint/shared_errors.h"
#include "core/checkpoint/weights/model_folder.h"
#include "core/resume/export.h"
#include "core/setup/deterministic.h"
#include "core/setup/export_texts.h"
#include "core/train/callbacks.h"
#include "core/train/stop.h"
#include "core/train/training_loop.h"

namespace trireme::train {

/// The callbacks of a program's run.
static Callbacks program_callbacks(const TrainingArguments& arguments, const Callbacks& own) {
  Callbacks callbacks{epoch_table(arguments.logging_steps), metrics_file(), time_split()};
  if (arguments.tensorboard) callbacks.push_back(tensorboard());
  if (arguments.early_stopping_patience) callbacks.push_back(early_stop(*arguments.early_stopping_patience));
  if (arguments.stop_on_signals) callbacks.push_back(std::make_shared<StopOnRequest>(std::nullopt, true, 0));
  callbacks.insert(callbacks.end(), own.begin(), own.end());
  return callbacks;
}

Trainer::Trainer(comm::World& world, const TrainingArguments& arguments, TrainerInputs inputs)
    : Trainer(prepare_program(world, arguments, inputs), world, nullptr,
              program_callbacks(arguments, inputs.callbacks)) {}

Trainer::Trainer(RunSetup setup, comm::World& world, std::unique_ptr<RunFolder> folder, Callbacks callbacks)
    : loop_(std::make_unique<TrainingLoop>(std::move(setup), world, std::move(folder), std::move(callbacks))) {}

Trainer::~Trainer() = default;

RunResult Trainer::train() { return loop_->train(); }

Boosted& Trainer::boosted() {
  loop_->boost();
  return loop_->run().boosted;
}

EvalResult Trainer::evaluate(const std::shared_ptr<data::Dataset>& data) {
  auto& run = boosted();
  const auto averaged = run.use_average();
  const auto& setup = loop_->run().setup;
  const auto own = data ? run.evaluation_loader(collated(data, setup.collator), setup.batch.eval) : nullptr;
  auto& loader = own ? *own : loop_->evaluations().loader();
  EvalResult result;
  with_deterministic_remedy(setup.config, [&] { result = train::evaluate(run, loader); });
  return result;
}

Predictions Trainer::predict(const std::shared_ptr<data::Dataset>& data) {
  auto& run = boosted();
  const auto averaged = run.use_average();
  const auto& setup = loop_->run().setup;
  const auto loader = run.evaluation_loader(collated(data, setup.collator), setup.batch.eval);
  Predictions out;
  with_deterministic_remedy(setup.config, [&] { out = train::predict(run, *loader); });
  return out;
}

void Trainer::save_model(const std::string& folder) {
  auto& run = boosted();
  const auto averaged = run.use_average();
  const auto& setup = loop_->run().setup;
  checkpoint::on_first_rank(run.booster->world(), [&] { checkpoint::check_own_model(folder); });
  export_weights(folder, run, exported_texts(setup), setup.weights.lora);
}

}  // namespace trireme::train
