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
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <utility>

#include "core/base/error.h"
#include "core/base/planned_device.h"

namespace trireme::memory {
namespace {

thread_local bool of_host = false;  // a scope of the calling thread, as LibTorch's own guards are

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

/// LibTorch's allocator for CPU tensors, with a count of its blocks. The process has one, because LibTorch has one
/// CPU allocator, whose blocks outlive any scope: the deleter of the last tensor is called when the process ends.
class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& instance() {
    static auto* allocator = new CountingAllocator;  // never destroyed: see above
    return *allocator;
  }

  void install(std::int64_t limit) {
    limit_ = limit;
    c10::SetCPUAllocator(this, /*priority=*/1);
  }
  [[nodiscard]] std::int64_t held() const { return held_; }
  [[nodiscard]] std::int64_t peak() const { return peak_; }
  [[nodiscard]] std::int64_t limit() const { return limit_; }
  [[nodiscard]] std::int64_t metered_peak() const { return metered_peak_; }
  void reset_meter() { metered_peak_ = held_.load(); }
  void set_peak(std::int64_t to) { peak_ = std::max(to, held_.load()); }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_block, c10::Device(c10::kCPU)};
    // What a thread that plans allocates here is none of the rank's.
    const bool counts = !of_host && PlannedDevice::current() == nullptr;
    const Header header{counts ? static_cast<std::int64_t>(bytes) : 0};
    if (!take(header.bytes))
      TORCH_CHECK_WITH(OutOfMemoryError, false,
                       fmt::format("run.memory_mb: {:.1f} MiB more are needed, but {:.1f} of {:.1f} MiB are in use",
                                   mib(header.bytes), mib(held()), mib(limit())));
    try {
      auto* block = static_cast<std::byte*>(c10::alloc_cpu(bytes + kHeader));
      std::memcpy(block, &header, sizeof header);
      auto* data = block + kHeader;
      return {data, data, &free_block, c10::Device(c10::kCPU)};
    } catch (...) {
      held_.fetch_sub(header.bytes);
      throw;
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  CountingAllocator() = default;

  /// Adds to the bytes in use; returns false, without adding, if that would exceed the limit.
  bool take(std::int64_t bytes) {
    const auto now = held_.fetch_add(bytes) + bytes;
    const auto limit = limit_.load(std::memory_order_relaxed);
    if (limit > 0 && now > limit) {
      held_.fetch_sub(bytes);
      return false;
    }
    raise(peak_, now);
    raise(metered_peak_, now);
    return true;
  }

  static void free_block(void* data) {
    if (data == nullptr) return;
    auto* block = static_cast<std::byte*>(data) - kHeader;
    Header header{};
    std::memcpy(&header, block, sizeof header);
    instance().held_.fetch_sub(header.bytes);
    c10::free_cpu(block);
  }

  std::atomic<std::int64_t> limit_{0}, held_{0}, peak_{0}, metered_peak_{0};
};

}  // namespace

void count(std::int64_t limit) { CountingAllocator::instance().install(limit); }

std::int64_t held() { return CountingAllocator::instance().held(); }
std::int64_t peak() { return CountingAllocator::instance().peak(); }
std::int64_t limit() { return CountingAllocator::instance().limit(); }

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
    for (const auto* phrase : {"can't allocate memory", "out of memory"})
      if (text.find(phrase) != std::string::npos) return without_internals(text);
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

/// The peak of a GPU's memory since the statistics of LibTorch's allocator were last reset.
static std::int64_t allocator_peak(c10::Device device) {
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}

/// The peak from before the resets, of the one GPU that a process uses. It belongs beside LibTorch's allocator, which
/// is the process's too and forgets its peak when it is reset.
static std::atomic<std::int64_t>& peak_before_resets() {
  static std::atomic<std::int64_t> peak{0};
  return peak;
}

std::int64_t peak_of(c10::Device device) {
  if (const auto* planned = PlannedDevice::current()) return planned->peak();
  return device.is_cpu() ? peak() : std::max(peak_before_resets().load(), allocator_peak(device));
}

std::int64_t Meter::peak() const {
  if (const auto* planned = PlannedDevice::current()) return planned->peak();
  return device_.is_cpu() ? CountingAllocator::instance().metered_peak() : allocator_peak(device_);
}

void Meter::reset() {
  if (auto* planned = PlannedDevice::current()) return planned->reset_peak();
  if (device_.is_cpu()) {
    CountingAllocator::instance().reset_meter();
    return;
  }
  peak_before_resets() = peak_of(device_);
  c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
}

std::int64_t Meter::capacity() const {
  if (device_.is_cpu() || device_.is_meta()) return limit();
  const auto [free, all] = c10::getDeviceAllocator(device_.type())->getMemoryInfo(device_.index());
  return static_cast<std::int64_t>(all) / sharers_;
}

std::optional<std::int64_t> available_on_host() {
  std::optional<std::int64_t> available;
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)  // "MemAvailable:   131072 kB"
    if (line.starts_with("MemAvailable:"))
      available = 1024 * std::strtoll(line.c_str() + line.find(':') + 1, nullptr, 10);
  std::int64_t most = 0, used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> most && std::ifstream("/sys/fs/cgroup/memory.current") >> used)
    available = std::min(available.value_or(most - used), most - used);
  return available;
}

PeakUndo::~PeakUndo() {
  if (PlannedDevice::current() != nullptr) return;
  if (device_.is_cpu()) {
    CountingAllocator::instance().set_peak(before_);
  } else {
    peak_before_resets() = before_;
    c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
  }
}

OfHost::OfHost(bool applies) : before_(std::exchange(of_host, of_host || applies)) {}
OfHost::~OfHost() { of_host = before_; }
bool OfHost::applies() { return of_host; }

}  // namespace trireme::memory
