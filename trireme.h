// All that a program needs to train with Trireme: #include "trireme.h" and link Trireme::trireme (docs/cpp.md).
#pragma once

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/random.h"
#include "core/base/version.h"
#include "core/booster/accelerator.h"
#include "core/booster/booster.h"
#include "core/booster/ddp.h"
#include "core/booster/plugin_loader.h"
#include "core/booster/program.h"
#include "core/booster/spawn.h"
#include "core/booster/task_around.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/weights.h"
#include "core/comm/first_on_host.h"
#include "core/comm/text.h"
#include "core/data/dataset.h"
#include "core/data/dataset_around.h"
#include "core/data/distributed_sampler.h"
#include "core/data/loader.h"
#include "core/nn/adapt.h"
#include "core/nn/attention.h"
#include "core/nn/batch_norm.h"
#include "core/nn/block.h"
#include "core/nn/convolution.h"
#include "core/nn/criterion.h"
#include "core/nn/dropout.h"
#include "core/nn/embedding.h"
#include "core/nn/gated_linear.h"
#include "core/nn/linear.h"
#include "core/nn/policy.h"
#include "core/nn/rms_norm.h"
#include "core/nn/tokens.h"
#include "core/optim/curves.h"
#include "core/optim/fused_adamw.h"
#include "core/optim/hybrid_adam.h"
#include "core/optim/sgd.h"
#include "core/optim/slotwise.h"
#include "core/train/evaluate.h"
#include "core/train/plugin_sections.h"
#include "core/train/run.h"
#include "core/train/run_config.h"
#include "core/train/trainer.h"
#include "datasets/datasets.h"
#include "tasks/tasks.h"

namespace trireme {

/// The models, data sets, tasks, optimizers and schedules that Trireme has. A program may add its own.
train::Kinds builtin_kinds();

}  // namespace trireme
