#include "core/train/task_choice.h"

#include <fmt/format.h>

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

/// The task that the loaded weights are for, by their config.json; "" when it names none.
std::string task_of_weights(const std::string& weights, const Registry<TaskKind>& tasks) {
  const auto stored = weights.empty() ? nlohmann::json() : checkpoint::read_beside_weights(weights);
  const auto list = stored.is_object() ? stored.value("architectures", nlohmann::json()) : nlohmann::json();
  const auto problem = stored.is_object() ? stored.value("problem_type", nlohmann::json()) : nlohmann::json();
  std::string first;
  if (!list.is_array()) return first;
  for (const auto& name : tasks.names())
    for (const auto& architecture : list)
      for (const auto& end : tasks.at(name).architectures) {
        if (!architecture.is_string() || !architecture.get<std::string>().ends_with(end)) continue;
        if (problem.is_string() && problem.get<std::string>() == tasks.at(name).problem_type) return name;
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

void choose_metrics(Prepared& p) {
  p.best = best_metric(p);
  p.shown = p.best;
  if (const auto metrics = p.task->metrics(); p.best.name == kLoss && !metrics.empty()) p.shown = metrics.front();
}

}  // namespace trireme::train
