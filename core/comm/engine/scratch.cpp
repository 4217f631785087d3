#include "core/comm/engine/scratch.h"

#include <bit>
#include <new>

namespace trireme::comm::engine {
namespace {
constexpr std::align_val_t kAlign{64};
}

std::shared_ptr<std::byte> Scratch::take(std::size_t bytes) {
  const auto size = std::bit_ceil(bytes < 64 ? std::size_t{64} : bytes);
  std::byte* buffer = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& list = free_[size];
    if (!list.empty()) {
      buffer = list.back();
      list.pop_back();
      held_bytes_ -= size;
    }
  }
  if (buffer == nullptr) buffer = static_cast<std::byte*>(::operator new(size, kAlign));
  return {buffer, [pool = shared_from_this(), size](std::byte* used) { pool->give_back(used, size); }};
}

void Scratch::give_back(std::byte* buffer, std::size_t size) {
  {
    const std::lock_guard lock(mutex_);
    if (held_bytes_ + size <= kKeepBytes) {
      free_[size].push_back(buffer);
      held_bytes_ += size;
      return;
    }
  }
  ::operator delete(buffer, kAlign);
}

Scratch::~Scratch() {
  for (auto& [size, list] : free_)
    for (auto* buffer : list) ::operator delete(buffer, kAlign);
}

}  // namespace trireme::comm::engine
