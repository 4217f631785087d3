#include "plugins/data_parallel/replica_threads.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <latch>
#include <optional>
#include <utility>

namespace trireme::plugins {

ReplicaThreads::ReplicaThreads(std::vector<c10::Device> devices, bool in_turn) : devices_(std::move(devices)) {
  if (in_turn || devices_.size() == 1) return;
  const auto count = static_cast<int>(devices_.size());
  const int threads = at::get_num_threads();
  std::latch started(count);
  pool_ = std::make_unique<c10::ThreadPool>(count, /*numa_node_id=*/-1, [&] {
    at::get_num_threads();  // a thread's first call sets LibTorch's default
    at::set_num_threads(std::max(1, threads / count));
    // The cache is shared by all threads, and the first to end its forward pass clears it: a weight with two uses would
    // be cast once or twice, and its gradient rounded in one order or another.
    at::autocast::set_autocast_cache_enabled(false);
    started.count_down();
  });
  started.wait();
  at::set_num_threads(threads);  // restores the default for threads that start later
}

void ReplicaThreads::run(std::size_t count, const std::function<void(std::size_t replica)>& body) {
  if (!pool_) {
    for (std::size_t r = 0; r < count; ++r) {
      const c10::DeviceGuard device(devices_[r]);
      body(r);
    }
    return;
  }
  const at::ThreadLocalState state;
  std::vector<std::exception_ptr> errors(count);
  for (std::size_t r = 0; r < count; ++r) {
    std::optional<c10::Stream> stream;
    if (devices_[r].is_cuda()) stream = c10::impl::VirtualGuardImpl(devices_[r].type()).getStream(devices_[r]);
    pool_->run([&, r, stream] {
      try {
        const at::ThreadLocalStateGuard same_state(state);
        const c10::OptionalStreamGuard same_stream(stream);
        body(r);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  pool_->waitWorkComplete();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace trireme::plugins
