#include "core/setup/task_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::train {
namespace {

/// The problem_type in the config.json of weights, which is that of a task; "" when there is none. @throws ConfigError
std::string stored_problem(const StoredConfig& stored, const Registry<TaskKind>& tasks) {
  const auto problem = stored.value("problem_type");
  if (problem.is_null()) return "";
  std::vector<std::string> known;
  for (const auto& name : tasks.names())
    if (const auto& each = tasks.at(name).problem_type; !each.empty()) known.push_back(each);
  if (std::find(known.begin(), known.end(), problem) == known.end())
    throw ConfigError(
        fmt::format("{}: problem_type is {}; it must be {}", stored.path, problem.dump(), text::join(known, " or ")));
  return problem.get<std::string>();
}

/// The task that the loaded weights are for, by their config.json; "" when it names none.
std::string task_of_weights(const StoredConfig& stored, const Registry<TaskKind>& tasks) {
  const auto list = stored.value("architectures");
  const auto problem = stored_problem(stored, tasks);
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
Metric best_metric(const RunConfig& config, const std::vector<Metric>& metrics) {
  const Metric loss{.name = kLoss, .label = kLoss, .higher_is_better = false, .fraction = false};
  const auto& wanted = config.train.best;
  if (!wanted) return metrics.empty() ? loss : metrics.front();
  const std::string split = "validation.";
  std::vector<std::string> known{split + kLoss};
  if (*wanted == known.front()) return loss;
  for (const auto& metric : metrics) {
    if (*wanted == split + metric.name) return metric;
    known.push_back(split + metric.name);
  }
  config::fail(config.root.table("train"), "best",
               fmt::format("\"{}\" is no metric of this task (known: {}){}", *wanted, text::join(known),
                           text::did_you_mean(*wanted, known)));
}

/// The task of the loaded weights if it fits the data, else the model's for these data.
std::string usual_task(const RunConfig& config, const LoadedWeights& weights, const nn::ModelKind& model,
                       const nn::DataSpec& spec) {
  const auto of_weights = task_of_weights(weights.config, config.kinds.tasks);
  if (of_weights.empty()) return model.default_task(spec);
  try {
    static_cast<void>(select_task(config, of_weights).make(spec));
  } catch (const ConfigError&) {  // such as an encoder with a head for masked tokens, and labels of classes
    return model.default_task(spec);
  } catch (const DataError&) {  // choose_task() reports it
  }
  return of_weights;
}

}  // namespace

std::string name_task(const RunConfig& config, const LoadedWeights& weights, const nn::ModelKind& model,
                      const nn::DataSpec& spec) {
  const auto& written = config.train.task;
  return written && !written->empty() ? *written : usual_task(config, weights, model, spec);
}

ChosenTask choose_task(const RunConfig& config, const std::string& name, const data::DatasetInfo& data) {
  auto kind = select_task(config, name);
  std::shared_ptr<const Task> made;
  try {
    made = kind.make(data.spec);
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", data.source, error.what()));
  }
  return with_metrics(config, std::move(kind), std::move(made));
}

ChosenTask with_metrics(const RunConfig& config, TaskKind kind, std::shared_ptr<const Task> made) {
  const auto metrics = made->metrics();
  const auto best = best_metric(config, metrics);
  const bool by_loss = best.name == kLoss && !metrics.empty();
  return {std::move(kind), std::move(made), best, by_loss ? metrics.front() : best};
}

void check_problem(const RunConfig& config, const LoadedWeights& weights, const TaskKind& task) {
  if (!weights.adapters.empty()) return;  // the head is theirs
  const auto problem = stored_problem(weights.config, config.kinds.tasks);
  if (!problem.empty() && !task.problem_type.empty() && problem != task.problem_type)
    throw ConfigError(
        fmt::format("{}: problem_type is \"{}\", but the task is \"{}\"; evaluate these weights by their own task, on "
                    "data for it",
                    weights.config.path, problem, task.name()));
}

}  // namespace trireme::train
