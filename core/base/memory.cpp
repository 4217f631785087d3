#include "core/base/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/error.h"

namespace trireme::memory {
namespace {

std::atomic<std::int64_t> the_limit{0}, held_bytes{0}, peak_bytes{0}, metered_peak{0};
thread_local bool of_host = false;

/// Precedes each block, for its deleter. kHeader is LibTorch's alignment.
struct Header {
  std::int64_t bytes;
};
constexpr std::size_t kHeader = 64;
static_assert(sizeof(Header) <= kHeader);

void raise(std::atomic<std::int64_t>& peak, std::int64_t to) {
  auto at = peak.load(std::memory_order_relaxed);
  while (to > at && !peak.compare_exchange_weak(at, to)) {
  }
}

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024 * 1024); }

/// Adds to the bytes in use; returns false, without adding, if that would exceed the limit.
bool take(std::int64_t bytes) {
  const auto now = held_bytes.fetch_add(bytes) + bytes;
  const auto limit = the_limit.load(std::memory_order_relaxed);
  if (limit > 0 && now > limit) {
    held_bytes.fetch_sub(bytes);
    return false;
  }
  raise(peak_bytes, now);
  raise(metered_peak, now);
  return true;
}

void free_block(void* data) {
  if (data == nullptr) return;
  auto* block = static_cast<std::byte*>(data) - kHeader;
  Header header{};
  std::memcpy(&header, block, sizeof header);
  held_bytes.fetch_sub(header.bytes);
  c10::free_cpu(block);
}

class Counting final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_block, c10::Device(c10::kCPU)};
    const Header header{of_host ? 0 : static_cast<std::int64_t>(bytes)};
    if (!take(header.bytes))
      TORCH_CHECK_WITH(OutOfMemoryError, false,
                       fmt::format("run.memory_mb: {:.1f} MiB more are needed, but {:.1f} of {:.1f} MiB are in use",
                                   mib(header.bytes), mib(held()), mib(the_limit.load())));
    try {
      auto* block = static_cast<std::byte*>(c10::alloc_cpu(bytes + kHeader));
      std::memcpy(block, &header, sizeof header);
      auto* data = block + kHeader;
      return {data, data, &free_block, c10::Device(c10::kCPU)};
    } catch (...) {
      held_bytes.fetch_sub(header.bytes);
      throw;
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

void count(std::int64_t limit) {
  static Counting counting;
  the_limit = limit;
  c10::SetCPUAllocator(&counting, /*priority=*/1);
}

std::int64_t held() { return held_bytes; }
std::int64_t peak() { return peak_bytes; }
std::int64_t limit() { return the_limit; }

/// LibTorch's message about host memory is the text of a failed assertion; only its number is of use.
static std::string without_internals(const std::string& text) {
  constexpr std::string_view kBefore = "you tried to allocate ";
  const auto at = text.find(kBefore);
  if (at == std::string::npos) return text.substr(0, text.find('\n'));
  const auto bytes = std::strtod(text.c_str() + at + kBefore.size(), nullptr);
  return fmt::format("a tensor of {:.1f} MiB could not be allocated", bytes / (1 << 20));
}

std::optional<std::string> exhausted(const std::exception_ptr& error) {
  const auto advised = [](const std::string& text) -> std::optional<std::string> {
    for (const auto* words : {"can't allocate memory", "out of memory"})
      if (text.find(words) != std::string::npos) return without_internals(text);
    return std::nullopt;
  };
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    return std::nullopt;
  } catch (const c10::OutOfMemoryError& torch) {
    const std::string text = torch.what_without_backtrace();
    return text.substr(0, text.find('\n'));
  } catch (const c10::Error& torch) {
    return advised(torch.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return "the machine has no more memory";
  } catch (const std::exception& other) {
    return advised(other.what());
  } catch (...) {
    return std::nullopt;
  }
}

static std::int64_t allocator_peak(c10::Device device) {
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}
static std::int64_t peak_before_resets = 0;  // of the GPU; a process uses only one

std::int64_t peak_of(c10::Device device) {
  return device.is_cpu() ? peak() : std::max(peak_before_resets, allocator_peak(device));
}

std::int64_t Meter::peak() const { return device_.is_cpu() ? metered_peak.load() : allocator_peak(device_); }

void Meter::reset() {
  if (device_.is_cpu()) {
    metered_peak = held_bytes.load();
    return;
  }
  peak_before_resets = peak_of(device_);
  c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
}

std::int64_t Meter::capacity() const {
  if (device_.is_cpu()) return limit();
  const auto [free, all] = c10::getDeviceAllocator(device_.type())->getMemoryInfo(device_.index());
  return static_cast<std::int64_t>(all) / sharers_;
}

OfHost::OfHost(bool applies) : before_(std::exchange(of_host, of_host || applies)) {}
OfHost::~OfHost() { of_host = before_; }

}  // namespace trireme::memory
