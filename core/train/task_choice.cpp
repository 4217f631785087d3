#include "core/train/task_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/weights.h"
#include "core/train/evaluate.h"
#include "core/train/plugin_sections.h"

namespace trireme::train {
namespace {

/// The problem_type in the config.json of weights, which is that of a task; "" when there is none. @throws ConfigError
std::string stored_problem(const std::string& weights, const Registry<TaskKind>& tasks) {
  const auto stored = weights.empty() ? nlohmann::json() : checkpoint::read_beside_weights(weights);
  const auto problem = stored.is_null() ? stored : stored.value("problem_type", nlohmann::json());
  if (problem.is_null()) return "";
  std::vector<std::string> known;
  for (const auto& name : tasks.names())
    if (const auto& each = tasks.at(name).problem_type; !each.empty()) known.push_back(each);
  if (std::find(known.begin(), known.end(), problem) == known.end())
    throw ConfigError(fmt::format("{}: problem_type is {}; it must be {}",
                                  checkpoint::beside_weights(weights, checkpoint::kModelConfig), problem.dump(),
                                  text::join(known, " or ")));
  return problem.get<std::string>();
}

/// The task that the loaded weights are for, by their config.json; "" when it names none.
std::string task_of_weights(const std::string& weights, const Registry<TaskKind>& tasks) {
  const auto stored = weights.empty() ? nlohmann::json() : checkpoint::read_beside_weights(weights);
  const auto list = stored.is_object() ? stored.value("architectures", nlohmann::json()) : nlohmann::json();
  const auto problem = stored_problem(weights, tasks);
  std::string first;
  if (!list.is_array()) return first;
  for (const auto& name : tasks.names())
    for (const auto& architecture : list)
      for (const auto& end : tasks.at(name).architectures) {
        if (!architecture.is_string() || !architecture.get<std::string>().ends_with(end)) continue;
        if (!problem.empty() && problem == tasks.at(name).problem_type) return name;
        if (first.empty()) first = name;
      }
  return first;
}

/// The metric that train.best names, or the task's first.
Metric best_metric(const Prepared& p) {
  const auto metrics = p.task->metrics();
  const Metric loss{.name = kLoss, .label = kLoss, .higher_is_better = false, .fraction = false};
  if (!p.config.train.best) return metrics.empty() ? loss : metrics.front();
  const std::string split = "validation.";
  std::vector<std::string> known{split + kLoss};
  if (*p.config.train.best == known.front()) return loss;
  for (const auto& metric : metrics) {
    if (*p.config.train.best == split + metric.name) return metric;
    known.push_back(split + metric.name);
  }
  config::fail(p.config.root.table("train"), "best",
               fmt::format("\"{}\" is no metric of this task (known: {}){}", *p.config.train.best, text::join(known),
                           text::did_you_mean(*p.config.train.best, known)));
}

/// The task of the loaded weights if it fits the data, else the model's for these data.
std::string usual_task(const Prepared& p) {
  const auto& spec = p.data.info.spec;
  const auto of_weights = task_of_weights(p.weights, p.config.kinds.tasks);
  if (of_weights.empty()) return p.kind->default_task(spec);
  try {
    static_cast<void>(select_task(p.config, of_weights).make(spec));
  } catch (const ConfigError&) {  // such as an encoder with a head for masked tokens, and labels of classes
    return p.kind->default_task(spec);
  } catch (const DataError&) {  // choose_task() reports it
  }
  return of_weights;
}

}  // namespace

const std::string& name_task(Prepared& p) {
  auto& name = p.config.train.task;
  if (!name || name->empty()) name = usual_task(p);
  return *name;
}

void choose_task(Prepared& p) {
  p.task_kind = select_task(p.config, name_task(p));
  try {
    p.task = p.task_kind.make(p.data.info.spec);
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", p.data.info.source, error.what()));
  }
  choose_metrics(p);
}

void check_problem(const Prepared& p) {
  if (!p.adapters.empty()) return;  // the head is theirs
  const auto problem = stored_problem(p.weights, p.config.kinds.tasks);
  const auto& of_task = p.task_kind.problem_type;
  if (!problem.empty() && !of_task.empty() && problem != of_task)
    throw ConfigError(
        fmt::format("{}: problem_type is \"{}\", but the task is \"{}\"; evaluate these weights by their own "
                    "task, on data for it",
                    checkpoint::beside_weights(p.weights, checkpoint::kModelConfig), problem, p.task_kind.name()));
}

void choose_metrics(Prepared& p) {
  p.best = best_metric(p);
  p.shown = p.best;
  if (const auto metrics = p.task->metrics(); p.best.name == kLoss && !metrics.empty()) p.shown = metrics.front();
}

}  // namespace trireme::train
