// What the tasks with labels of classes share: counts, and checks of the data.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/booster/task.h"
#include "tasks/tasks.h"

namespace trireme::tasks {

/// At least float32: sums in 16 bits would be rounded.
at::Tensor in_full_precision(const at::Tensor& output);
/// The labels that count, 0-dim float64.
at::Tensor count_valid(const at::Tensor& labels);
/// The sums of accuracy and, with k > 1, of top-k accuracy after it, over the labels that count.
/// logits [..., classes], labels int64 [...]
std::vector<MetricSums> measure_accuracy(const at::Tensor& logits, const at::Tensor& labels, std::int64_t k = 1);

/// The data's labels; null when the caller gave no spec. @throws ConfigError when they are not of this kind. `needs`:
/// what the task needs, for the message.
const nn::SampleTensor* checked_labels(const TaskOptions& options, bool integers, const std::vector<std::size_t>& dims,
                                       const std::string& task, const std::string& needs);

}  // namespace trireme::tasks
