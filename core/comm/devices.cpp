// CUDA queries without LibTorch, whose own device count would load libtorch_cuda.
#include "core/comm/devices.h"

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

/// A function of the CUDA driver; null when there is no driver. Once initialised, the driver stays loaded: it does not
/// support being unloaded.
template <class Function>
static Function* driver_function(const char* name) {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  return driver == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(driver, name));
}

int cuda_device_count() {
  try {
    set_cuda_environment(detect().size);
  } catch (const ConfigError&) {
    // An incomplete environment of a launcher is reported elsewhere.
  }
  auto* init = driver_function<int(unsigned)>("cuInit");
  auto* get_count = driver_function<int(int*)>("cuDeviceGetCount");
  int count = 0;
  if (init == nullptr || get_count == nullptr || init(0) != 0 || get_count(&count) != 0) return 0;
  return count;
}

std::string cuda_device_name(int index) {
  if (index >= cuda_device_count()) return "";
  auto* get_device = driver_function<int(int*, int)>("cuDeviceGet");
  auto* get_name = driver_function<int(char*, int, int)>("cuDeviceGetName");
  int device = 0;
  char name[256] = "";
  if (get_device == nullptr || get_name == nullptr || get_device(&device, index) != 0 ||
      get_name(name, sizeof name, device) != 0)
    return "";
  return name;
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
