// cuda_device_count(): asks the driver itself. LibTorch's own count would load libtorch_cuda.
#include <dlfcn.h>

#include "core/comm/world.h"

namespace trireme::comm {

int cuda_device_count() {
  // The driver stays loaded once initialised: closing it is not supported by it.
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return 0;
  auto* init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  auto* get_count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int count = 0;
  if (init == nullptr || get_count == nullptr || init(0) != 0 || get_count(&count) != 0) return 0;
  return count;
}

}  // namespace trireme::comm
