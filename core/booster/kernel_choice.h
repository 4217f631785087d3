// The keys of [train] that choose among kernels with the same results: the rules that need the model, and the line
// about the choice in the header of a run. Every plugin over LocalModel has them. enable_all_optimization turns on
// what was measured to be faster on the kind of device (bench/records/kernels_cpu.md): on CPUs, steps with dropout are
// fused, norms are not. On GPUs nothing has been measured yet, so only a key of its own turns a Trireme kernel on.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "core/booster/plugin.h"
#include "core/booster/precision.h"
#include "core/nn/layers/kernels.h"

namespace trireme {

/// Checks the rules that need the model, before a process group exists; on a CPU, also whether it has the kernel.
/// @throws ConfigError
void check_kernels(nn::Model& model, const RunSettings& run);

/// Whether the run's ranks compute on CPUs, as far as `device` and the machine tell.
bool runs_on_cpu(const RunSettings& run);

/// The kernels that the keys choose for this model on this device.
nn::Kernels chosen_kernels(nn::Model& model, const TrainOptions& train, c10::Device device);

/// Whether LibTorch has this kernel for the model's attention, without a mask for padding or with it.
/// @pre the model has attention layers
bool has_attention_kernel(nn::Model& model, const TrainOptions& train, c10::Device device, nn::AttentionKernel kernel);

/// Checks the same rules and sets the kernels of the model's layers. Returns a description of the choice on this device
/// for the header; "" when no key is set. `precision`: with autocast no step is fused. @throws ConfigError, also when
/// the device does not have a requested kernel
std::string choose_kernels(nn::Model& model, const TrainOptions& train, const Precision& precision, c10::Device device);

}  // namespace trireme
