// The tasks that [train] task = "..." selects. They read the target "labels". Their losses are those of Hugging Face's
// models: means over all samples, or over all tokens whose label is not -100.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/registry.h"
#include "core/booster/task.h"

namespace trireme::tasks {

struct TaskOptions {
  nn::DataSpec data{};  ///< checked when it has targets
  double label_smoothing = 0;
  std::int64_t topk = 5;                   ///< classification: the k of top-k accuracy, of more classes than k
  std::vector<double> class_weights = {};  ///< classification: the loss's factor of each class; empty: 1
  /// Classification: the factor of a class with n training samples is in proportion to n^(-balance_classes), and the
  /// mean of all samples' factors is 1.
  double balance_classes = 0;
};

/// Each sample [B], or each token [B, T], has one class: int64, or -100 for one that does not count. Cross-entropy of
/// the model's first output [..., classes]; with class weights, the mean is weighted by them. Training samples may be
/// mixed from two (nn::kMixedLabels). Accuracy, and top-k accuracy and macro F1 where the data's spec has the number of
/// classes. @throws ConfigError when the data's labels are others, or the class weights are not one for each class
std::shared_ptr<const Task> classification(const TaskOptions& options = {});

/// Each sample has any number of C labels: [B, C] of 0 and 1. Binary cross-entropy of the first output [B, C]; micro
/// F1, and accuracy over all labels. @throws ConfigError
std::shared_ptr<const Task> multi_label(const TaskOptions& options = {});

/// Each sample has numbers: floating point [B] or [B, K]. Mean squared error of the first output, of as many elements;
/// mean absolute error. @throws ConfigError
std::shared_ptr<const Task> regression(const TaskOptions& options = {});

/// Predicts the tokens behind a mask: labels int64 [B, T], -100 where the token is not predicted. Cross-entropy of the
/// first output [B, T, vocabulary]; perplexity and accuracy. @throws ConfigError
std::shared_ptr<const Task> masked_lm(const TaskOptions& options = {});

/// Predicts each token from those before it: labels int64 [B, T] aligned with input_ids, as in Hugging Face's models;
/// position t's output is compared with label t + 1. Perplexity and accuracy. @throws ConfigError
std::shared_ptr<const Task> causal_lm(const TaskOptions& options = {});

Registry<TaskKind> all_tasks();

}  // namespace trireme::tasks
