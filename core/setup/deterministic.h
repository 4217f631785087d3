// run.deterministic: the same run gives the same bits again on GPUs, too. A CPU rank computes alike in any case: its
// threads share the work of an operation in a fixed way, and random numbers depend on the seed and the sample alone.
//
// On a GPU three things make a repeat differ, and are switched off: kernels that add in the order in which threads
// come (LibTorch then takes other ones, or reports that it has none), cuDNN's choice of an algorithm by measuring, and
// cuBLAS's workspaces, which streams share.
#pragma once

#include <functional>

#include "core/setup/run_config.h"

namespace trireme::train {

/// With run.deterministic: prepares this process, from now on. Call it before CUDA starts. `cuda`: this run uses GPUs.
/// @throws ConfigError when CUBLAS_WORKSPACE_CONFIG has a value with which matrix products may differ
void make_deterministic(const RunConfig& config, bool cuda);

/// Calls `body`. @throws ConfigError that names the operation and the key, when LibTorch has no deterministic algorithm
/// for one and run.deterministic asks for it
void with_deterministic_remedy(const RunConfig& config, const std::function<void()>& body);

}  // namespace trireme::train
