// All that a program needs to train with Trireme: #include "trireme.h" and link Trireme::trireme (docs/cpp.md).
#pragma once

#include "core/accelerate/accelerator.h"
#include "core/accelerate/ddp.h"
#include "core/base/files/output_folder.h"
#include "core/base/version.h"
#include "core/booster/booster.h"
#include "core/booster/plugin_loader.h"
#include "core/booster/task_wrapper.h"
#include "core/checkpoint/weights/adapters.h"
#include "core/comm/first_on_host.h"
#include "core/data/dataset_wrapper.h"
#include "core/data/distributed_sampler.h"
#include "core/nn/layers.h"
#include "core/optim/optimizers.h"
#include "core/program/program.h"
#include "core/program/spawn.h"
#include "core/setup/plugin_sections.h"
#include "core/train/run.h"
#include "core/train/trainer.h"
#include "core/tune/optimize.h"
#include "datasets/datasets.h"
#include "plugins/options.h"
#include "tasks/tasks.h"

namespace trireme {

/// The models, data sets, tasks, optimizers and schedules that Trireme has. A program may add its own.
train::Kinds builtin_kinds();

}  // namespace trireme
