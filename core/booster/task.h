// Task: what a model is trained for. It owns the loss, the weight of a batch by which loss sums are divided, and the
// metrics of an evaluation. Progress line, metrics.jsonl, evaluation, best weights and summary take the metrics' names
// from it. In a pipeline a task sees the batch's targets, side inputs and sample ids, but no other inputs. The tasks
// that [train] task = "..." selects are in tasks/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/factory.h"
#include "core/booster/criterion.h"
#include "core/nn/data_spec.h"

namespace trireme {

/// A number by which an evaluation is judged: the quotient of two sums over all batches and ranks.
struct Metric {
  std::string name;   ///< "top_k": the key in metrics.jsonl
  std::string label;  ///< "top-5": on the screen
  bool higher_is_better = true;
  bool fraction = true;      ///< 0 to 1, shown in percent
  std::int64_t entries = 1;  ///< more than one: the metric is the mean over the entries that occur (macro average)
  bool of_loss = false;      ///< its mean is that of the loss; measure() leaves it out
  std::function<double(double)> of_mean{};  ///< applied at the end: exp, for a perplexity; null: nothing
  std::vector<std::pair<std::string, std::int64_t>> parameters{};  ///< written beside the value: {"k", 5}
};

/// A metric's sums for one batch, of Metric::entries elements each (0-dim for one).
struct MetricSums {
  at::Tensor sum, weight;
};

/// What a task can show of an evaluation beyond its metrics, such as a confusion matrix. Like a metric it is made of
/// sums over all batches and ranks, so it is the same in every layout.
class TaskReport {
 public:
  virtual ~TaskReport() = default;
  [[nodiscard]] virtual std::int64_t entries() const = 0;
  /// The sums for a batch of at least one sample: [entries()], on the outputs' device.
  [[nodiscard]] virtual at::Tensor measure(const nn::Tensors& outputs, const data::Batch& batch) const = 0;
  /// The report for the screen: lines without a newline at the end. `totals`: float64 [entries()] on the CPU.
  [[nodiscard]] virtual std::string text(const at::Tensor& totals) const = 0;
  /// The report for a file: a JSON object.
  [[nodiscard]] virtual nlohmann::json json(const at::Tensor& totals) const = 0;
};

class Task {
 public:
  virtual ~Task() = default;
  /// The number of the batch's units, by whose sum over the global batch the loss is divided: 0-dim, on the targets'
  /// device, without synchronising the host. Undefined: the samples, whose number every rank knows.
  [[nodiscard]] virtual at::Tensor weight(const data::Batch& /*batch*/) const { return {}; }

  struct LossOptions {
    bool training = true;  ///< false: without what only training has, such as label smoothing
    nn::CrossEntropy cross_entropy = nn::cross_entropy;
  };
  /// As a Criterion: the sum over the batch's units.
  [[nodiscard]] virtual at::Tensor loss(const nn::Tensors& outputs, const data::Batch& batch,
                                        const LossOptions& options) const = 0;
  /// Whether loss() uses the outputs for nothing but one call of LossOptions::cross_entropy with the first of them.
  /// Plugins may then hold these logits in parts, and a model's head may compute the loss without them: loss() then
  /// gets an undefined tensor in their place.
  [[nodiscard]] virtual bool takes_sharded_logits() const { return false; }

  /// Whether loss() and weight() read the targets of samples that are mixed from two (nn::kMixedLabels).
  [[nodiscard]] virtual bool takes_mixed_labels() const { return false; }

  /// The first is the default of [train] best, and is shown after each epoch.
  [[nodiscard]] virtual std::vector<Metric> metrics() const { return {}; }
  /// The metrics' sums for a batch of at least one sample, in the order of metrics(), without those of the loss.
  [[nodiscard]] virtual std::vector<MetricSums> measure(const nn::Tensors& /*outputs*/,
                                                        const data::Batch& /*batch*/) const {
    return {};
  }
  /// Made only for an evaluation that asks for it; null: the task has none.
  [[nodiscard]] virtual std::unique_ptr<const TaskReport> report() const { return nullptr; }
  /// For a prediction, at least float32 [B, outputs()]: the probability of each class; by problem_type() it is that of
  /// each label, or they are the numbers. Undefined: the task predicts nothing of a sample as a whole.
  [[nodiscard]] virtual at::Tensor predictions(const nn::Tensors& /*outputs*/) const { return {}; }
  /// The size of the model's output for a sample, as the data define it: the classes. 0: the model defines it itself.
  [[nodiscard]] virtual std::int64_t outputs() const { return 0; }
  /// Hugging Face's problem_type for the exported config.json; "" where there is none.
  [[nodiscard]] virtual std::string problem_type() const { return ""; }
};

/// Checks that the task reads the targets that the training samples get when they are combined (data::Dataset).
/// @throws ConfigError
void check_combined(const Task& task, const std::vector<nn::SampleTensor>& targets);

/// Makes a task for samples of this spec. @throws ConfigError, DataError when it cannot be trained on them
using TaskFactory = Factory<std::shared_ptr<const Task>(const nn::DataSpec& data)>;
/// A task that [train] task = "..." can select.
struct TaskKind {
  TaskFactory make;
  /// Which weights in Hugging Face's layout are for this task: the ends of their class names ("ForMaskedLM"), and among
  /// tasks with the same ones their problem_type.
  std::vector<std::string> architectures{};
  std::string problem_type{};
  [[nodiscard]] const std::string& name() const { return make.name(); }
};

/// The loss of a task in training. `sharded`: computes the cross-entropy of logits of which the ranks hold parts; null
/// if they are complete.
Criterion training_criterion(std::shared_ptr<const Task> task, nn::CrossEntropy sharded);

/// A task without metrics. Each sample has the weight 1, unless `weight` says otherwise (see Task::weight()).
std::shared_ptr<const Task> task_of(Criterion criterion, std::function<at::Tensor(const data::Batch&)> weight = {});

}  // namespace trireme
