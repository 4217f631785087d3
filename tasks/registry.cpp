#include "tasks/tasks.h"

namespace trireme::tasks {

TaskKinds all_tasks() {
  const std::vector<std::string> labelled{"ForImageClassification", "ForSequenceClassification",
                                          "ForTokenClassification"};
  TaskKinds tasks("task");
  tasks.add("classification", {classification, labelled, "single_label_classification"});
  tasks.add("multi_label", {multi_label, labelled, "multi_label_classification"});
  tasks.add("regression", {regression, labelled, "regression"});
  tasks.add("masked_lm", {masked_lm, {"ForMaskedLM"}, ""});
  tasks.add("causal_lm", {causal_lm, {"ForCausalLM", "LMHeadModel"}, ""});
  return tasks;
}

}  // namespace trireme::tasks
