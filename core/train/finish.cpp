#include "core/train/finish.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/booster/precision.h"
#include "core/checkpoint/shared_errors.h"
#include "core/checkpoint/weights/adapters.h"
#include "core/comm/host_values.h"
#include "core/resume/export.h"
#include "core/resume/run_folder.h"
#include "core/setup/export_texts.h"
#include "core/setup/lora.h"
#include "core/train/evaluate.h"
#include "core/train/stop.h"

namespace trireme::train {
namespace {

/// Copies of the slices on the host.
std::vector<at::Tensor> host_copies(const std::vector<shard::Slice>& slices) {
  std::vector<at::Tensor> copies;
  for (const auto& [placement, value] : slices)
    copies.push_back(value.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
  return copies;
}

void write_back(BoostedModel& model, std::vector<shard::Slice> slices, const std::vector<at::Tensor>& copies) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < copies.size(); ++i) slices[i].value.copy_(copies[i]);
  model.weights_changed();
}

/// Evaluates the exported weights on the test split: the last ones, and the best ones if they differ.
void score_test(RunContext& run, RunResult& result) {
  const auto loader = run.boosted.evaluation_loader(run.setup.data.test, run.setup.batch.eval);
  const auto before_batch = end_on_signal(run.world);
  result.test = evaluate(run.boosted, *loader, nullptr, nullptr, before_batch);
  const auto& at = run.state.at;
  const Evaluated last{at.epoch_number(), at.global_step, {}};
  run.call(&RunCallback::on_evaluate,
           Evaluation{.split = "test", .result = *result.test, .of = last, .weights = "last"});
  if (result.best_is_last() || !run.setup.plan.keeps_best) return;
  const bool keeps_last = run.setup.plan.keeps_last;
  const auto last_weights = keeps_last ? host_copies(run.best->state(run.boosted)) : std::vector<at::Tensor>();
  if (!run.best->load(run.boosted)) return;
  result.best_test = evaluate(run.boosted, *loader, nullptr, nullptr, before_batch);
  run.call(&RunCallback::on_evaluate,
           Evaluation{.split = "test", .result = *result.best_test, .of = run.state.best, .weights = "best"});
  if (keeps_last) write_back(*run.boosted.model, run.best->state(run.boosted), last_weights);
}

void try_test(RunContext& run, RunResult& result) {
  try {
    score_test(run, result);
  } catch (const DataError& error) {
    const bool resumes = run.setup.config.run.keep_checkpoints > 0;
    throw DataError(
        fmt::format("{}. The training is complete, and its weights are in {}/{}{}", error.what(), run.folder->dir(),
                    kExportedModel, resumes ? "; the same command then runs only the test" : ""),
        error.where());
  }
}

}  // namespace

RunResult finish(RunContext& run, std::chrono::steady_clock::time_point begin, std::int64_t local_samples,
                 std::optional<double> flops_per_s) {
  const auto& setup = run.setup;
  // Save before the test, so that an error in the test samples does not lose the training.
  const auto model = fmt::format("{}/{}", run.folder->dir(), kExportedModel);
  const auto format = export_format(setup.config.run);
  const auto texts = exported_texts(setup, format.dtype);
  const bool exports_best = setup.config.run.export_weights == "best" && run.state.best.epoch > 0;
  const auto replace = [&](const std::string& folder, const std::function<void(const std::string& next)>& write) {
    if (const auto problem = replace_model(run.world, folder, write); !problem.empty())
      run.booster.log().warn("{}; after a power failure an earlier model may be there again", problem);
  };
  replace(model, [&](const std::string& next) {
    if (exports_best)
      run.best->export_to(run.world, next, format, texts);
    else
      export_weights(next, run.boosted, texts, setup.weights.lora, format);
  });
  if (setup.weights.lora && setup.weights.lora->merge) {
    // Frozen weights may be in half precision; all tensors have the dtype that config.json says.
    auto merged = format;
    if (!merged.dtype) merged.dtype = Precision::parse(setup.config.train.precision).parameters;
    replace(fmt::format("{}/{}", run.folder->dir(), kMergedModel), [&](const std::string& next) {
      checkpoint::save_merged(next, run.boosted.model->state_dict(), run.boosted.model->module(),
                              fmt::format("{}/{}", model, checkpoint::kAdapterTensors),
                              model_texts(setup, format.dtype), run.booster.mesh(), merged);
    });
  }
  RunResult result{.state = run.state,
                   .run_dir = run.folder->dir(),
                   .shown = setup.task.shown,
                   .resumed_at = run.resumed_at,
                   .exports_best = exports_best,
                   .flops_per_s = flops_per_s,
                   .peak_flops = run.peak_flops};
  if (setup.data.test) try_test(run, result);
  if (run.state.at.epoch < setup.config.train.epochs)
    result.stopped_by = run.state.at.global_step >= setup.batch.steps ? "train.max_steps" : run.stopped_by;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.times = run.folder->times();
  if (result.times.begin > 0) result.times.end = unix_seconds();
  result.skipped = count_samples(setup.data, run.world, &data::Dataset::skipped);
  result.oriented = count_samples(setup.data, run.world, &data::Dataset::oriented).distinct;
  const auto reports = comm::gather_text(run.world.group(), rank_report(run.boosted, run.world, local_samples).dump());
  auto summary = run_summary(result, run.booster, reports);
  for (const auto& callback : run.callbacks) callback->on_summary(run, summary);
  checkpoint::on_first_rank(run.world, [&] { run.folder->summary(summary); });
  return result;
}

}  // namespace trireme::train
