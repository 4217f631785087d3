// Tensors in host memory beside a GPU: offloaded weights and their masters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace trireme::memory {

/// Zeros [size] in host memory, which no limit of a rank's own memory counts. `pinned`: a GPU copies to and from it
/// while the host goes on. LibTorch's own pinned memory comes in powers of two, up to twice what was asked for; this
/// takes whole pages.
/// @throws std::bad_alloc; c10::Error when the CUDA driver refuses to pin it
at::Tensor host_zeros(std::int64_t size, at::ScalarType dtype, bool pinned);

/// Pins memory that the host has, and lets go of it when no copy uses it any more. libtrireme_cuda brings both when it
/// is loaded; without them host_zeros pins nothing.
struct Pinning {
  void (*pin)(void* memory, std::size_t bytes) = nullptr;
  void (*unpin)(void* memory) = nullptr;
};
void pin_host_memory_by(const Pinning& pinning);

}  // namespace trireme::memory
