// Tensors in host memory on a rank with a GPU: offloaded weights and master weights.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

namespace trireme::memory {

/// Zeros [size] in host memory that does not count towards the limit on the rank's tensors, for copies to and from
/// `device`. `pinned`: a GPU can make them asynchronously. LibTorch's own pinned memory is allocated in powers of two,
/// up to twice the requested size; this allocates whole pages.
/// @throws std::bad_alloc; c10::Error when the CUDA driver refuses to pin it
at::Tensor host_zeros(std::int64_t size, at::ScalarType dtype, c10::Device device, bool pinned);

/// Functions that pin host memory and unpin it once no copy uses it any more. libtrireme_cuda registers both when it is
/// loaded; without them host_zeros() pins nothing.
struct Pinning {
  void (*pin)(void* memory, std::size_t bytes) = nullptr;
  void (*unpin)(void* memory) = nullptr;
};
void register_pinning(const Pinning& pinning);

}  // namespace trireme::memory
