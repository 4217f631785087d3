// Kinds: everything that a file can select by name, also in the section of a plugin. A program may add its own, and so
// may shared objects (extension.h).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/base/registry.h"
#include "core/booster/plugin.h"
#include "core/booster/task.h"
#include "core/data/datasets.h"
#include "core/nn/model_kind.h"
#include "core/optim/lr_schedule.h"
#include "core/optim/optimizer.h"
#include "core/tune/switches.h"

namespace trireme::train {

class RunCallback;

struct Kinds : PluginKinds {
  Registry<std::shared_ptr<nn::ModelKind>> models{"model"};               ///< [model] name
  Registry<data::DatasetFactory> datasets{"data set"};                    ///< [data] name
  Registry<TaskKind> tasks{"task"};                                       ///< [train] task
  Registry<optim::OptimizerFactory> optimizers{optim::all_optimizers()};  ///< [optimizer] name
  Registry<optim::CurveFactory> lr_schedules{optim::all_curves()};        ///< [schedule] name
  tune::Switches switches = tune::all_switches();                         ///< what [optimize] can choose
  /// Make callbacks that join every training run (core/train/callback.h); a run calls each once, on every rank.
  std::vector<std::function<std::shared_ptr<RunCallback>()>> callbacks{};
};

/// The tables of their own keys, in the order of a file's sections.
std::vector<const FieldTable*> own_tables(const Kinds& kinds);

}  // namespace trireme::train
