#include "core/train/evaluate.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/train/out_of_memory.h"

namespace trireme::train {
namespace {

/// The sums of an evaluation: {samples, sum of losses, their weight, then each metric's sums and weights, then those of
/// the report, if there is one}. They are added up on the device, and read once at the end.
class Sums {
 public:
  Sums(std::vector<Metric> metrics, const TaskReport* report, c10::Device device)
      : metrics_(std::move(metrics)),
        report_(report),
        totals_(at::zeros({3 + 2 * entries(metrics_) + (report == nullptr ? 0 : report->entries())},
                          at::TensorOptions(at::kDouble).device(device))) {}

  void add(const Task& task, const nn::Tensors& outputs, const data::Batch& batch) {
    const auto count = at::full({}, static_cast<double>(batch.size()), totals_.options());
    const auto weight = task.weight(batch);
    nn::Tensors parts{count, task.loss(outputs, batch, {.training = false}), weight.defined() ? weight : count};
    for (const auto& [sum, of] : task.measure(outputs, batch)) parts.insert(parts.end(), {sum, of});
    if (report_ != nullptr) parts.push_back(report_->measure(outputs, batch));
    for (auto& part : parts) part = part.to(totals_.options()).reshape({-1});
    totals_ += at::cat(parts);
  }

  EvalResult total(const comm::Group& ranks) {
    ranks.all_reduce(totals_);
    const auto host = totals_.to(at::kCPU);
    const auto* next = host.const_data_ptr<double>();
    EvalResult result{
        .samples = static_cast<std::int64_t>(next[0]), .loss = next[1] / next[2], .metrics = {}, .report = {}};
    if (next[0] == 0) throw DataError("evaluation: no sample could be read");
    if (next[2] == 0)
      throw DataError("evaluation: the weights of all samples sum to 0, for example because every label is -100");
    next += 3;
    for (const auto& metric : metrics_) {
      const double mean = metric.of_loss ? result.loss : mean_of(next, metric.entries);
      result.metrics.emplace_back(metric, metric.of_mean ? metric.of_mean(mean) : mean);
      if (!metric.of_loss) next += 2 * metric.entries;
    }
    if (report_ != nullptr) result.report = host.narrow(0, host.size(0) - report_->entries(), report_->entries());
    return result;
  }

 private:
  static std::int64_t entries(const std::vector<Metric>& metrics) {
    std::int64_t count = 0;
    for (const auto& metric : metrics) count += metric.of_loss ? 0 : metric.entries;
    return count;
  }
  /// The mean quotient of the entries that occur; 0 when none does, such as an F1 where nothing is or should be found.
  static double mean_of(const double* sums, std::int64_t entries) {
    double mean = 0, occurring = 0;
    for (std::int64_t i = 0; i < entries; ++i)
      if (const double weight = sums[entries + i]; weight != 0) {
        mean += sums[i] / weight;
        ++occurring;
      }
    return occurring == 0 ? 0 : mean / occurring;
  }
  std::vector<Metric> metrics_;
  const TaskReport* report_;
  at::Tensor totals_;
};

EvalResult run_through(Boosted& run, data::Loader& loader, const Task& task, const TaskReport* report,
                       const std::function<void()>& before_batch) {
  const auto begin = std::chrono::steady_clock::now();
  Sums sums(task.metrics(), report, run.booster->world().device());
  const auto add = [&](const nn::Tensors& outputs, const data::Batch& batch) { sums.add(task, outputs, batch); };
  forward_all(run, loader, add, before_batch);
  auto result = sums.total(run.booster->loss_group());
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace

void forward_all(Boosted& run, data::Loader& loader,
                 const std::function<void(const nn::Tensors& outputs, const data::Batch& batch)>& use,
                 const std::function<void()>& before_batch) {
  const at::NoGradGuard no_grad;
  run.model->train(false);
  const ScopeGuard trains_again([&] { run.model->train(true); });
  loader.start_epoch(0);
  while (auto step = loader.next())
    for (const auto& batch : step->micro) {
      if (before_batch) before_batch();
      // This also runs on a rank without samples: all-gathers of a model's weights need every rank.
      const auto outputs = run.model->forward(batch);
      if (batch.size() > 0 && !outputs.empty()) use(outputs, batch);
    }
}

double EvalResult::value(const std::string& name) const {
  if (name == kLoss) return loss;
  for (const auto& [metric, value] : metrics)
    if (metric.name == name) return value;
  throw UsageError(fmt::format("the task has no metric \"{}\"", name));
}

std::string metric_text(const Metric& metric, double value) {
  return metric.fraction ? fmt::format("{:.1f} %", 100 * value) : fmt::format("{:.4f}", value);
}

nlohmann::json to_json(const EvalResult& result) {
  nlohmann::json out{{kLoss, result.loss}};
  for (const auto& [metric, value] : result.metrics) {
    out[metric.name] = value;
    for (const auto& [name, parameter] : metric.parameters) out[name] = parameter;
  }
  return out;
}

EvalResult evaluate(Boosted& run, data::Loader& loader, const Task* task, const TaskReport* report,
                    const std::function<void()>& before_batch) {
  EvalResult result;
  const auto& of = task != nullptr ? *task : *run.task;
  with_memory_remedy([&] { result = run_through(run, loader, of, report, before_batch); },
                     [&] {
                       const auto batch = loader.options().micro_batch;
                       return batch == 1
                                  ? std::string(" in an evaluation: use more ranks")
                                  : fmt::format(" in an evaluation: set train.eval_batch to less than {}", batch);
                     });
  return result;
}

}  // namespace trireme::train
