// CUDA queries without LibTorch, whose own device count would load libtorch_cuda.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "core/base/error.h"
#include "core/comm/transport.h"
#include "core/comm/world.h"

namespace trireme::comm {

void set_cuda_environment(int ranks) {
  if (ranks == 1) return;
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
}

int cuda_device_count() {
  try {
    set_cuda_environment(detect().size);
  } catch (const ConfigError&) {
    // An incomplete environment of a launcher is reported elsewhere.
  }
  // Once initialised, the driver stays loaded: it does not support being unloaded.
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return 0;
  auto* init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  auto* get_count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int count = 0;
  if (init == nullptr || get_count == nullptr || init(0) != 0 || get_count(&count) != 0) return 0;
  return count;
}

bool wants_cuda(const std::string& device, int available) {
  if (device == "cpu") return false;
  if (device == "auto") return available > 0;
  if (device != "cuda") throw ConfigError(fmt::format("device \"{}\": must be auto, cpu or cuda", device));
  if (available == 0)
    throw ConfigError(
        "the CUDA driver reports no device; use device = \"auto\" or \"cpu\", or check "
        "CUDA_VISIBLE_DEVICES");
  return true;
}

}  // namespace trireme::comm
