// Runs the kernels of a .cu file on the host: include this first, then the file. A block's threads take turns, each up
// to its next shuffle or barrier, and blocks follow one another. That shows wrong indexes, sums and divergent barriers;
// it shows neither races nor what the device's compiler does. Throws std::logic_error when threads that must meet do
// not.
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>  // the device's functions are in the global namespace
#include <ucontext.h>

#include <cstring>
#include <functional>
#include <stdexcept>
#include <vector>

#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#define cudaGetLastError() cudaSuccess

inline dim3 gridDim, blockDim, blockIdx, threadIdx;

namespace host_cuda {

enum class Stop { none, shuffle, barrier, end };

struct Thread {
  dim3 index;
  ucontext_t context{};
  std::vector<char> stack = std::vector<char>(64 << 10);
  Stop at = Stop::none;
  double lent = 0;  ///< the bits of the value in a shuffle
};
inline std::vector<Thread> block;
inline Thread* current = nullptr;
inline ucontext_t scheduler;
inline std::function<void()> kernel_call;

inline void enter() {
  kernel_call();
  current->at = Stop::end;
}

inline void stop(Stop at) {
  current->at = at;
  swapcontext(&current->context, &scheduler);
}

/// Threads first..last - 1 have stopped at the same place.
inline void check_meeting(std::size_t first, std::size_t last) {
  for (auto i = first + 1; i < last; ++i)
    if (block[i].at != block[first].at) throw std::logic_error("threads that must meet have diverged");
}

inline void run_block() {
  constexpr std::size_t kWarpSize = 32;
  for (auto& thread : block) {
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = thread.stack.size();
    thread.context.uc_link = &scheduler;
    makecontext(&thread.context, enter, 0);
    thread.at = Stop::none;
  }
  for (bool running = true; running;) {
    running = false;
    bool barrier = false;
    for (auto& thread : block) {
      if (thread.at == Stop::end) continue;
      current = &thread;
      threadIdx = thread.index;
      swapcontext(&scheduler, &thread.context);
      running = running || thread.at != Stop::end;
      barrier = barrier || thread.at == Stop::barrier;
    }
    if (barrier) check_meeting(0, block.size());
    for (std::size_t first = 0; first < block.size(); first += kWarpSize)
      check_meeting(first, std::min(first + kWarpSize, block.size()));
  }
}

}  // namespace host_cuda

inline void __syncthreads() { host_cuda::stop(host_cuda::Stop::barrier); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int away) {
  using namespace host_cuda;
  std::memcpy(&current->lent, &value, sizeof(T));
  stop(Stop::shuffle);
  std::memcpy(&value, &block[static_cast<std::size_t>(current - block.data()) ^ static_cast<unsigned>(away)].lent,
              sizeof(T));
  stop(Stop::shuffle);  // before the next one changes what was lent
  return value;
}

namespace trireme::nn {

template <class Kernel, class... Arguments>
void launch(Kernel* kernel, dim3 blocks, dim3 threads, cudaStream_t, const Arguments&... arguments) {
  gridDim = blocks;
  blockDim = threads;
  host_cuda::block.resize(threads.x * threads.y);
  for (unsigned i = 0; i < threads.x * threads.y; ++i) host_cuda::block[i].index = {i % threads.x, i / threads.x, 0};
  host_cuda::kernel_call = [&] { kernel(arguments...); };
  for (blockIdx.y = 0; blockIdx.y < blocks.y; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x) host_cuda::run_block();
}

}  // namespace trireme::nn
