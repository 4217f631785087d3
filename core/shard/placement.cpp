#include "core/shard/placement.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/base/error.h"

namespace trireme::shard {
namespace {

std::int64_t product(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

void check_bounds(const Placement& p) {
  if (!p.ranges.empty()) {
    TRIREME_CHECK(p.dim >= 0 && p.dim < static_cast<std::int64_t>(p.shape.size()), "{}: there is no dim {}", p.name,
                  p.dim);
    for (const auto& r : p.ranges)
      TRIREME_CHECK(0 <= r.begin && r.begin <= r.end && r.end <= p.shape[static_cast<std::size_t>(p.dim)],
                    "{}: range [{}, {}) is outside dim {} of size {}", p.name, r.begin, r.end, p.dim,
                    p.shape[static_cast<std::size_t>(p.dim)]);
  }
  if (p.flat)
    TRIREME_CHECK(0 <= p.flat->begin && p.flat->begin <= p.flat->end && p.flat->end <= product(p.cut_shape()),
                  "{}: flat range [{}, {}) is outside {} elements", p.name, p.flat->begin, p.flat->end,
                  product(p.cut_shape()));
}

}  // namespace

Range split(std::int64_t size, int parts, int index) {
  TRIREME_CHECK(parts > 0 && 0 <= index && index < parts, "there is no part {} of {}", index, parts);
  const std::int64_t base = size / parts, larger = size % parts;
  const std::int64_t begin = base * index + std::min<std::int64_t>(index, larger);
  return {begin, begin + base + (index < larger ? 1 : 0)};
}

Placement Placement::whole(std::string name, std::vector<std::int64_t> shape) {
  Placement p;
  p.name = std::move(name);
  p.shape = std::move(shape);
  return p;
}

bool Placement::differs_along(const std::string& axis) const {
  return axis == stage_axis || std::find(sharded_axes.begin(), sharded_axes.end(), axis) != sharded_axes.end();
}

std::int64_t Placement::full_numel() const { return product(shape); }

std::vector<std::int64_t> Placement::stored_shape() const {
  if (!stored_transposed) return shape;
  TRIREME_CHECK(shape.size() == 2, "{}: only a tensor of two dims can be stored transposed", name);
  return {shape[1], shape[0]};
}

std::vector<std::int64_t> Placement::cut_shape() const {
  auto cut = shape;
  if (!ranges.empty()) {
    std::int64_t held = 0;
    for (const auto& r : ranges) held += r.size();
    cut[static_cast<std::size_t>(dim)] = held;
  }
  return cut;
}

std::vector<std::int64_t> Placement::local_shape() const {
  if (flat) return {flat->size()};
  return cut_shape();
}

std::int64_t Placement::local_numel() const { return product(local_shape()); }

// A shard along `dim` has one run of range x (dims after it) for each index of the dims before it and each range.
std::vector<Placement::Run> Placement::runs() const {
  check_bounds(*this);
  std::vector<Run> cut;
  if (ranges.empty()) {
    cut.push_back({0, 0, full_numel()});
  } else {
    const auto d = static_cast<std::size_t>(dim);
    std::int64_t outer = 1, inner = 1;
    for (std::size_t i = 0; i < d; ++i) outer *= shape[i];
    for (std::size_t i = d + 1; i < shape.size(); ++i) inner *= shape[i];
    std::int64_t local = 0;
    for (std::int64_t o = 0; o < outer; ++o)
      for (const auto& r : ranges) {
        const std::int64_t size = r.size() * inner;
        if (size > 0) cut.push_back({(o * shape[d] + r.begin) * inner, local, size});
        local += size;
      }
  }
  if (!flat) return cut;
  std::vector<Run> held;
  for (const auto& run : cut) {
    const std::int64_t begin = std::max(run.local_begin, flat->begin);
    const std::int64_t end = std::min(run.local_begin + run.size, flat->end);
    if (begin < end) held.push_back({run.full_begin + begin - run.local_begin, begin - flat->begin, end - begin});
  }
  return held;
}

at::Tensor Placement::slice(const at::Tensor& full) const {
  TRIREME_CHECK(full.sizes().vec() == shape, "{}: the tensor does not have the placement's full shape", name);
  if (is_whole()) return full.contiguous();
  const auto source = full.contiguous().view(-1);
  auto local = at::empty({local_numel()}, full.options());
  for (const auto& run : runs())
    local.narrow(0, run.local_begin, run.size).copy_(source.narrow(0, run.full_begin, run.size));
  return local.view(local_shape());
}

void Placement::paste(at::Tensor& full, const at::Tensor& local) const {
  TRIREME_CHECK(full.sizes().vec() == shape && full.is_contiguous(),
                "{}: the full tensor does not have the placement's full shape", name);
  TRIREME_CHECK(local.numel() == local_numel(), "{}: {} elements for a slice of {}", name, local.numel(),
                local_numel());
  auto target = full.view(-1);
  const auto source = local.contiguous().view(-1);
  for (const auto& run : runs())
    target.narrow(0, run.full_begin, run.size).copy_(source.narrow(0, run.local_begin, run.size));
}

}  // namespace trireme::shard
