// Compiled with -fmad=false (core/CMakeLists.txt).
#include "core/base/random.h"
#include "core/shard/cuda/draw_kernel.h"

namespace trireme::shard {
namespace {

constexpr int kThreads = 256;

/// A thread draws one quad (four neighbouring elements of the full tensor) and writes those that are in the run.
template <Init::Kind kind>
__global__ void draw(float a, float b, std::uint64_t key, const std::int64_t* runs, std::int64_t quads_a_run,
                     std::int64_t quads, float* out) {
  for (std::int64_t at = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; at < quads;
       at += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t* run = runs + 3 * (at / quads_a_run);
    const std::int64_t full_begin = run[0], local_begin = run[1], size = run[2];
    const std::int64_t quad = full_begin / 4 + at % quads_a_run;
    if (4 * quad >= full_begin + size) continue;
    const auto values = four_values<kind>(a, b, random::philox(key, 0, static_cast<std::uint64_t>(quad)));
    for (int i = 0; i < 4; ++i) {
      const std::int64_t element = 4 * quad + i - full_begin;
      if (element >= 0 && element < size) out[local_begin + element] = values.v[i];
    }
  }
}

}  // namespace

cudaError_t draw_on_gpu(const Init& init, std::uint64_t key, const std::int64_t* runs, std::int64_t run_count,
                        std::int64_t longest, float* out, cudaStream_t stream) {
  // A run that does not begin at the first element of a quad spans one more quad.
  const std::int64_t quads_a_run = (longest + 3) / 4 + 1, quads = run_count * quads_a_run;
  if (run_count == 0 || longest == 0) return cudaSuccess;
  constexpr std::int64_t kMostBlocks = 1 << 16;
  const std::int64_t wanted = (quads + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  const auto a = static_cast<float>(init.a), b = static_cast<float>(init.b);
  if (init.kind == Init::Kind::normal)
    draw<Init::Kind::normal><<<blocks, kThreads, 0, stream>>>(a, b, key, runs, quads_a_run, quads, out);
  else if (init.kind == Init::Kind::trunc_normal)
    draw<Init::Kind::trunc_normal><<<blocks, kThreads, 0, stream>>>(a, b, key, runs, quads_a_run, quads, out);
  else
    draw<Init::Kind::uniform><<<blocks, kThreads, 0, stream>>>(a, b, key, runs, quads_a_run, quads, out);
  return cudaGetLastError();
}

}  // namespace trireme::shard
