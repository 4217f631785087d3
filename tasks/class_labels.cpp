#include "tasks/class_labels.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/promote_types.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/nn/layers/index_checks.h"

namespace trireme::tasks {

at::Tensor in_full_precision(const at::Tensor& output) {
  return output.to(at::promote_types(output.scalar_type(), at::kFloat));
}

at::Tensor count_valid(const at::Tensor& labels) { return labels.ne(nn::kNoLabel).sum().to(at::kDouble); }

std::vector<MetricSums> measure_accuracy(const at::Tensor& logits, const at::Tensor& labels, std::int64_t k) {
  // No score has the label -100, so labels that do not count are never right.
  const auto right = std::get<1>(logits.topk(std::min(k, logits.size(-1)), -1)).eq(labels.unsqueeze(-1));
  const auto count = count_valid(labels);
  std::vector<MetricSums> sums{{right.select(-1, 0).sum(), count}};
  if (k > 1) sums.push_back({right.sum(), count});
  return sums;
}

const nn::SampleTensor* checked_labels(const TaskOptions& options, bool integers, const std::vector<std::size_t>& dims,
                                       const std::string& task, const std::string& needs) {
  if (options.data.targets.empty()) return nullptr;
  const auto* labels = options.data.target(nn::kLabels);
  const auto refuse = [&](const std::string& found) {
    throw ConfigError(fmt::format("train.task: \"{}\" needs {}, but the data have {}; choose another train.task", task,
                                  needs, found));
  };
  if (labels == nullptr) refuse("no labels");
  if (options.data.labels_are_inputs && task != kCausalLm)
    throw ConfigError(fmt::format(
        "train.task: \"{}\" would learn to copy: the labels of these data are the tokens themselves, each to be "
        "predicted from those before it; set train.task = \"{}\", with gpt2, llama or qwen3, or choose other data",
        task, kCausalLm));
  const bool fits = integers ? labels->dtype == at::kLong : at::isFloatingType(labels->dtype);
  if (!fits || std::find(dims.begin(), dims.end(), labels->shape.size()) == dims.end())
    refuse(labels->text() + " for each sample");
  return labels;
}

}  // namespace trireme::tasks
