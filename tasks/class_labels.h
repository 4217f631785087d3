// What the tasks with labels of classes share: counts, checks of the data, and the confusion matrix.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/booster/task.h"
#include "tasks/tasks.h"

namespace trireme::tasks {

inline constexpr const char* kCausalLm = "causal_lm";  ///< the task that predicts each token from those before it

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

/// The confusion matrix of a classification, and by class its recall (here: accuracy), precision and F1.
/// For the first output [..., outputs] with outputs >= classes, and labels [...]; those of -100 do not count. `names`:
/// empty, or one for each class. In JSON: "classes" (distinct_names()), "matrix" [actual][predicted], and "by_class", a
/// list of {class, samples, predicted, accuracy, precision, f1}, where a quotient of zero samples is null.
std::unique_ptr<const TaskReport> confusion_matrix(std::int64_t classes, const std::vector<std::string>& names);

}  // namespace trireme::tasks
