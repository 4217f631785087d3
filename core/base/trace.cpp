#include "core/base/trace.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

namespace trireme::trace {
namespace {

struct State {
  std::atomic<bool> on{false};
  std::mutex mutex;
  std::vector<Span> spans;
  c10::Device device = c10::kCPU;
};

State& state() {
  static State the;
  return the;
}

}  // namespace

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool on() { return state().on.load(std::memory_order_relaxed); }

void start(c10::Device device) {
  const std::lock_guard lock(state().mutex);
  state().spans.clear();
  state().device = device;
  state().on = true;
}

std::vector<Span> stop() {
  const std::lock_guard lock(state().mutex);
  state().on = false;
  return std::exchange(state().spans, {});
}

void add(std::string track, std::string name, double begin, double end) {
  const std::lock_guard lock(state().mutex);
  if (state().on) state().spans.push_back({std::move(track), std::move(name), begin, end});
}

void synchronize() {
  const auto device = state().device;
  if (on() && !device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.has_index() ? device.index() : 0);
}

Scope::~Scope() {
  if (begin_ == 0) return;
  synchronize();
  add("compute", number_ < 0 ? std::string(what_) : fmt::format("{} {}", what_, number_), begin_, now());
}

}  // namespace trireme::trace
