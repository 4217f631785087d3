// The lines that a run prints first: versions, layout, model, data, plan.
#pragma once

#include <cstdint>

#include "core/setup/run_setup.h"
#include "core/train/report/console.h"

namespace trireme::train {

/// "Trireme 0.1.0 · LibTorch 2.11.0 · CUDA 13.0 (no GPU here: CPU) · Open MPI 4.1.4 · 4 ranks on 1 host (mpirun)"
std::string versions_line(const comm::World& world);
/// "torch_ddp: bucket_cap_mb = 50": the options that differ from their defaults.
std::string plugin_line(const Plugin& plugin);
/// `staging_bytes`: RunContext's.
void print_header(Console& console, const RunSetup& setup, Boosted& run, std::int64_t staging_bytes);

}  // namespace trireme::train
