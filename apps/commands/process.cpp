#include "apps/commands/process.h"

#include <ATen/Parallel.h>
#include <malloc.h>

#include <cstdlib>

#include "core/base/memory.h"

namespace trireme::apps {

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
    at::set_num_threads(1);
}

}  // namespace trireme::apps
