#include "apps/commands/process.h"

#include <ATen/Parallel.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "core/base/log.h"
#include "core/base/memory.h"
#include "models/registry.h"

namespace trireme::apps {
namespace {

/// The number of cores that this process may run on.
int usable_cores() { return static_cast<int>(std::thread::hardware_concurrency()); }

/// Whether a rank has a GPU: then the host only computes what was offloaded, on all ranks at the same time.
bool beside_gpu(const config::RunConfig& config) { return config.run.device != "cpu" && comm::cuda_device_count() > 0; }

}  // namespace

comm::WorldOptions world_options(const config::RunConfig& config) {
  return {.device = config.run.device,
          .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(config.run.timeout_s * 1000))};
}

void tune_process(const config::RunConfig& config, const comm::LaunchInfo& info) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  memory::count(static_cast<std::int64_t>(config.run.memory_mb * 1024 * 1024));
  if (config.run.threads > 0)
    at::set_num_threads(static_cast<int>(config.run.threads));
  else if (info.local_size > 1 && std::getenv("OMP_NUM_THREADS") == nullptr)
    at::set_num_threads(beside_gpu(config) ? std::max(1, usable_cores() / info.local_size) : 1);
}

bool checks_for(const std::optional<std::int64_t>& ranks) { return ranks.value_or(1) > 1 && comm::detect().size == 1; }

train::Prepared check_for_ranks(config::RunConfig config, std::int64_t ranks, const std::string& weights) {
  const auto size = static_cast<int>(ranks);
  const Log silent(/*rank=*/1);  // the ranks will print notes and warnings
  return train::prepare(std::move(config), {.size = size, .local_size = size}, models::all_models(), weights, silent);
}

}  // namespace trireme::apps
