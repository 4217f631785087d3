#include "tasks/tasks.h"

namespace trireme::tasks {
namespace {

Fields<TaskOptions> fields_of(const char* name, const char* text, bool smooths = true) {
  Fields<TaskOptions> table("train", text);
  table.with("task", name);
  if (smooths)
    table.add("label_smoothing", &TaskOptions::label_smoothing,
              "Label smoothing of the training loss: the fraction of each label that is spread over all classes. "
              "Evaluation does not use it.",
              {.min = 0, .below = 1});
  return table;
}

/// `fields` is static in the caller.
TaskFactory factory(const Fields<TaskOptions>& fields, std::shared_ptr<const Task> (*make)(const TaskOptions&)) {
  return {fields, TaskOptions{}, [make](TaskOptions options, const nn::DataSpec& data) {
            options.data = data;
            return make(options);
          }};
}

}  // namespace

Registry<TaskKind> all_tasks() {
  static const auto one_label =
      fields_of("classification", "One class for each sample or token.")
          .add("topk", &TaskOptions::topk,
               "Evaluation of more than k classes also reports top-k accuracy, the fraction of samples whose class is "
               "among the k highest scores.",
               {.min = 1, .max = kMostSamples})
          .add(
              "class_weights", &TaskOptions::class_weights,
              "The factor of each class in the loss, in the order of the classes: of the loaded weights, if these have "
              "the same ones, else of the data. The loss is then the mean weighted by these factors. Empty: all are 1.",
              {.min = 0})
          .add(
              "balance_classes", &TaskOptions::balance_classes,
              "How far the classes are evened out in the loss, which is then a weighted mean: the factor of a class "
              "with "
              "n training samples is in proportion to n^(-balance_classes). 0: all factors are 1; 1: all classes count "
              "alike.",
              {.min = 0, .max = 1})
          .rule([](const TaskOptions& o, const CheckedSection& section) {
            if (!o.class_weights.empty() && o.balance_classes > 0)
              section.fail("balance_classes", "makes the factors that class_weights gives; remove one of the two");
          });
  static const auto many_labels = fields_of("multi_label", "Any number of classes for each sample.");
  static const auto regression_fields = fields_of("regression", "Numbers for each sample; mean squared error.", false);
  static const auto masked = fields_of("masked_lm", "The tokens behind a mask, each a class of the vocabulary.");
  static const auto causal = fields_of("causal_lm", "Each token from those before it.");
  const std::vector<std::string> labelled{"ForImageClassification", "ForSequenceClassification",
                                          "ForTokenClassification"};
  Registry<TaskKind> tasks("task");
  tasks.add({factory(one_label, classification), labelled, "single_label_classification"});
  tasks.add({factory(many_labels, multi_label), labelled, "multi_label_classification"});
  tasks.add({factory(regression_fields, regression), labelled, "regression"});
  tasks.add({factory(masked, masked_lm), {"ForMaskedLM"}, ""});
  tasks.add({factory(causal, causal_lm), {"ForCausalLM", "LMHeadModel"}, ""});
  return tasks;
}

}  // namespace trireme::tasks
