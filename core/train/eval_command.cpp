// `trireme eval` and `trireme predict`: given weights on the samples of a data set, or of files.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/checkpoint/shared_errors.h"
#include "core/setup/deterministic.h"
#include "core/train/out_of_memory.h"
#include "core/train/run.h"

namespace trireme::train {
namespace {

Booster booster_of(RunSetup& setup, comm::World& world) {
  auto options = booster_options(setup.config);
  options.lr_schedule = {};  // nothing is trained, so the schedule is not checked
  options.train.ema_decay.reset();
  return Booster(world, std::move(setup.plugin), options);
}

/// The model with the weights.
Boosted load_model(Booster& booster, const RunSetup& setup) {
  auto source = setup.model.source();
  source.head_prefix.clear();  // a head that the weights lack would be drawn at random and evaluated
  Boosted run;
  with_memory_remedy(
      [&] {
        run = booster.boost({.source = std::move(source), .task = setup.task.made, .data = setup.data.validation});
      },
      [] {
        return ": partition the weights over more ranks, with parallel.plugin = \"hybrid_parallel\" and parallel.zero "
               "= 3";
      });
  return run;
}

/// The task's report of each split: on the screen, and on rank 0 in a file.
class Reports {
 public:
  Reports(const Task& task, const std::optional<std::string>& file)
      : report_(file ? task.report() : nullptr), path_(file.value_or("")) {}
  /// Before the evaluation, so that nobody waits for a report that cannot be written. @throws CheckpointError
  void open_file() {
    if (report_ && !path_.empty()) file_.emplace(path_);
  }
  [[nodiscard]] const TaskReport* get() const { return report_.get(); }
  void add(const std::string& split, const EvalResult& result, Console& console) {
    if (!report_) return;
    console.line(report_->text(result.report));
    auto& of = splits_[split] = to_json(result);
    of["samples"] = result.samples;
    if (file_) of.update(report_->json(result.report));
  }
  /// @throws CheckpointError
  void write_file() {
    if (!file_) return;
    const auto text = json_text(splits_) + "\n";
    file_->write(text.data(), text.size());
    file_->commit();
  }

 private:
  std::unique_ptr<const TaskReport> report_;
  std::string path_;
  std::optional<FileWriter> file_;
  nlohmann::json splits_ = nlohmann::json::object();
};

}  // namespace

EvalResult run_evaluation(RunSetup setup, comm::World& world, Terminal terminal,
                          const std::optional<std::string>& report_file) {
  Console console(terminal, world.rank() == 0);
  Reports reports(*setup.task.made, report_file);
  checkpoint::on_first_rank(world, [&] { reports.open_file(); });
  auto booster = booster_of(setup, world);
  auto run = load_model(booster, setup);
  EvalResult last;
  std::vector<std::string> bad;  // splits
  for (const auto& [name, split] :
       {std::pair{"validation", setup.data.validation}, std::pair{"test", setup.data.test}}) {
    if (!split) continue;
    auto loader = run.evaluation_loader(split, setup.batch.eval);
    with_deterministic_remedy(setup.config, [&] { last = evaluate(run, *loader, nullptr, reports.get()); });
    auto line = fmt::format("{:<11} {}   loss {:.4f}", name, text::quantity(last.samples, "sample"), last.loss);
    for (const auto& [metric, value] : last.metrics)
      line += fmt::format("   {} {}", metric.label, metric_text(metric, value));
    console.line(fmt::format("{}   {:.1f} s", line, last.seconds));
    reports.add(name, last, console);
    if (!std::isfinite(last.loss)) bad.emplace_back(name);
  }
  checkpoint::on_first_rank(world, [&] { reports.write_file(); });
  if (!bad.empty())
    throw NonFiniteError(fmt::format("the loss on {} is not finite; use earlier weights, or check the samples",
                                     text::join(bad, " and ")));
  return last;
}

std::vector<std::int64_t> run_prediction(RunSetup setup, comm::World& world, const OnPrediction& on_prediction) {
  auto booster = booster_of(setup, world);
  auto run = load_model(booster, setup);
  const auto loader = run.evaluation_loader(setup.data.validation, setup.batch.eval);
  const auto predict = [&](const nn::Tensors& outputs, const data::Batch& batch) {
    const auto predictions = setup.task.made->predictions(outputs);
    if (!predictions.defined())
      throw ConfigError(
          fmt::format("train.task: \"{}\" predicts nothing of a sample as a whole; only its loss can be evaluated",
                      setup.task.kind.name()));
    on_prediction(batch.sample_ids, predictions.to(at::TensorOptions(at::kCPU).dtype(at::kDouble)));
  };
  with_memory_remedy([&] { with_deterministic_remedy(setup.config, [&] { forward_all(run, *loader, predict); }); },
                     [&] {
                       return setup.batch.eval == 1
                                  ? std::string(" in a prediction: use a device with more memory")
                                  : fmt::format(" in a prediction: choose a --batch of less than {}", setup.batch.eval);
                     });
  return setup.data.validation->skipped();
}

}  // namespace trireme::train
