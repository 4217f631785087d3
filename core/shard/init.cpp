#include "core/shard/init.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/planned_device.h"
#include "core/base/random.h"
#include "core/shard/draw_values.h"

namespace trireme::shard {
namespace {

using Runs = std::vector<Placement::Run>;

/// Number of elements drawn at once when they cannot be drawn in place: 4 MiB on the host, 256 MiB on a GPU.
constexpr std::int64_t kHostChunk = 1 << 20, kDeviceChunk = 1 << 26;

DrawOnDevice draw_on_device = nullptr;

/// The parts of `runs`, which are consecutive in the slice, within local elements [begin, end), counted from `begin`.
Runs runs_within(const Runs& runs, std::int64_t begin, std::int64_t end) {
  Runs out;
  auto run =
      std::partition_point(runs.begin(), runs.end(), [&](const auto& r) { return r.local_begin + r.size <= begin; });
  for (; run != runs.end() && run->local_begin < end; ++run) {
    const std::int64_t first = std::max(begin, run->local_begin), last = std::min(end, run->local_begin + run->size);
    out.push_back({run->full_begin + first - run->local_begin, first - begin, last - first});
  }
  return out;
}

/// Draws local elements [begin, end) into `out`, with all threads.
void draw_on_host(const Init& init, std::uint64_t key, const Runs& runs, std::int64_t begin, std::int64_t end,
                  float* out) {
  at::parallel_for(begin, end, 1 << 15, [&](std::int64_t first, std::int64_t last) {
    for (const auto& run : runs_within(runs, first, last))
      draw_values(init, key, run.full_begin, run.size, out + (first - begin) + run.local_begin);
  });
}

}  // namespace

void register_draw_kernel(DrawOnDevice draw) { draw_on_device = draw; }

void draw_into(const Init& init, std::uint64_t seed, const Placement& placement, const at::Tensor& out) {
  TRIREME_CHECK(out.is_contiguous() && out.numel() == placement.local_numel(),
                "{}: the output tensor does not fit the slice", placement.name);
  const at::NoGradGuard no_grad;
  if (init.kind == Init::Kind::zeros || init.kind == Init::Kind::ones) {
    out.fill_(init.kind == Init::Kind::ones ? 1 : 0);
    return;
  }
  const std::uint64_t key = random::mix(seed, random::hash(placement.name));
  const auto runs = placement.runs();
  const bool device_draws = type_of(out.device()) == c10::kCUDA && (out.is_meta() || draw_on_device != nullptr);
  const bool in_place = out.scalar_type() == at::kFloat;
  if (in_place && out.is_meta()) return;
  if (in_place && device_draws) return draw_on_device(init, key, runs, out);
  if (in_place && out.is_cpu()) return draw_on_host(init, key, runs, 0, out.numel(), out.data_ptr<float>());
  const auto flat = out.view(-1);
  const std::int64_t size = std::min(out.numel(), device_draws ? kDeviceChunk : kHostChunk);
  const auto chunk =
      at::empty({size}, at::TensorOptions(at::kFloat).device(device_draws ? out.device() : host_of(out.device())));
  if (out.is_meta()) return;  // only the chunk's memory counts
  for (std::int64_t begin = 0; begin < out.numel(); begin += size) {
    const std::int64_t end = std::min(begin + size, out.numel());
    const auto part = chunk.narrow(0, 0, end - begin);
    if (device_draws)
      draw_on_device(init, key, runs_within(runs, begin, end), part);
    else
      draw_on_host(init, key, runs, begin, end, part.data_ptr<float>());
    flat.narrow(0, begin, end - begin).copy_(part);
  }
}

at::Tensor draw(const Init& init, std::uint64_t seed, const Placement& placement, at::ScalarType dtype,
                c10::Device device) {
  auto out = at::empty(placement.local_shape(), at::TensorOptions(dtype).device(device));
  draw_into(init, seed, placement, out);
  return out;
}

}  // namespace trireme::shard
