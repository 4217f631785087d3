#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <string>

#include "core/nn/layers/index_checks.h"
#include "tasks/class_labels.h"
#include "tasks/tasks.h"

namespace trireme::tasks {
namespace {

class LanguageModelling final : public Task {
 public:
  LanguageModelling(const TaskOptions& options, const std::string& name, bool causal)
      : smoothing_(options.label_smoothing), causal_(causal) {
    checked_labels(options, true, {1}, name, "a label for each token [T]");
  }

  at::Tensor weight(const data::Batch& batch) const override { return count_valid(labels(batch)); }
  at::Tensor loss(const nn::Tensors& outputs, const data::Batch& batch, const LossOptions& how) const override {
    return how.cross_entropy(outputs.front(), labels(batch), {.label_smoothing = how.training ? smoothing_ : 0});
  }
  bool takes_sharded_logits() const override { return true; }

  std::vector<Metric> metrics() const override {
    return {{.name = "perplexity",
             .label = "perplexity",
             .higher_is_better = false,
             .fraction = false,
             .of_loss = true,
             .of_mean = [](double loss) { return std::exp(loss); }},
            {"accuracy", "accuracy"}};
  }
  std::vector<MetricSums> measure(const nn::Tensors& outputs, const data::Batch& batch) const override {
    return measure_accuracy(outputs.front(), labels(batch));
  }

 private:
  /// The label of each position's output. A causal model's last position predicts a token that is not in the sample.
  [[nodiscard]] at::Tensor labels(const data::Batch& batch) const {
    const auto& given = batch.targets[nn::kLabels];
    if (!causal_ || given.size(1) == 0) return given;
    const auto last = at::full({given.size(0), 1}, nn::kNoLabel, given.options());
    return at::cat({given.narrow(1, 1, given.size(1) - 1), last}, 1);
  }
  double smoothing_;
  bool causal_;
};

}  // namespace

std::shared_ptr<const Task> masked_lm(const TaskOptions& options) {
  return std::make_shared<LanguageModelling>(options, "masked_lm", false);
}

std::shared_ptr<const Task> causal_lm(const TaskOptions& options) {
  return std::make_shared<LanguageModelling>(options, kCausalLm, true);
}

}  // namespace trireme::tasks
