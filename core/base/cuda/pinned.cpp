// Pins host memory for the GPU. libtrireme_cuda registers this implementation when it is loaded.
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include "core/base/host_memory.h"

namespace trireme::memory {
namespace {

/// Pinned for every device, because the rank's device may not be the current one.
void pin(void* memory, std::size_t bytes) { C10_CUDA_CHECK(cudaHostRegister(memory, bytes, cudaHostRegisterPortable)); }

void unpin(void* memory) {
  C10_CUDA_CHECK_WARN(cudaDeviceSynchronize());  // a copy may still be in progress
  C10_CUDA_CHECK_WARN(cudaHostUnregister(memory));
}

const bool pinning_registered = [] {
  register_pinning({pin, unpin});
  return true;
}();

}  // namespace
}  // namespace trireme::memory
