#include "core/base/host_memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "core/base/memory.h"
#include "core/base/planned_device.h"

namespace trireme::memory {
namespace {

constexpr std::size_t kPage = 4096;
Pinning pinning;

}  // namespace

void register_pinning(const Pinning& given) { pinning = given; }

at::Tensor host_zeros(std::int64_t size, at::ScalarType dtype, c10::Device device, bool pinned) {
  if (!pinned || !device.is_cuda() || pinning.pin == nullptr || size == 0) {
    const OfHost of_host;
    return at::zeros({size}, at::TensorOptions(dtype).device(host_of(device)));
  }
  const auto bytes = static_cast<std::size_t>(size) * c10::elementSize(dtype);
  const auto pages = (bytes + kPage - 1) / kPage * kPage;
  std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(kPage, pages), std::free);
  if (!memory) throw std::bad_alloc();
  std::memset(memory.get(), 0, pages);
  pinning.pin(memory.get(), pages);
  const auto give_back = [](void* pointer) {
    pinning.unpin(pointer);
    std::free(pointer);
  };
  return at::from_blob(memory.release(), {size}, give_back, at::TensorOptions(dtype));
}

}  // namespace trireme::memory
