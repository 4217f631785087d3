#include "core/shard/placement.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>

#include "core/base/error.h"

namespace trireme::shard {
namespace {

void check_bounds(const Placement& p) {
  std::int64_t above = -1;
  for (const auto& [dim, ranges, axis] : p.cuts) {
    TRIREME_CHECK(above < dim && dim < std::ssize(p.shape), "{}: a cut along dim {} after one along {}, of {} dims",
                  p.name, dim, above, p.shape.size());
    above = dim;
    const auto size = p.shape[static_cast<std::size_t>(dim)];
    for (const auto& r : ranges)
      TRIREME_CHECK(0 <= r.begin && r.begin <= r.end && r.end <= size,
                    "{}: range [{}, {}) is outside dim {} of size {}", p.name, r.begin, r.end, dim, size);
  }
  if (p.flat)
    TRIREME_CHECK(
        0 <= p.flat->begin && p.flat->begin <= p.flat->end && p.flat->end <= c10::multiply_integers(p.cut_shape()),
        "{}: flat range [{}, {}) is outside {} elements", p.name, p.flat->begin, p.flat->end,
        c10::multiply_integers(p.cut_shape()));
}

}  // namespace

Range split(std::int64_t size, int parts, int index) {
  TRIREME_CHECK(parts > 0 && 0 <= index && index < parts, "there is no part {} of {}", index, parts);
  const std::int64_t base = size / parts, larger = size % parts;
  const std::int64_t begin = base * index + std::min<std::int64_t>(index, larger);
  return {begin, begin + base + (index < larger ? 1 : 0)};
}

std::int64_t Cut::size() const {
  return std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                         [](std::int64_t sum, const Range& r) { return sum + r.size(); });
}

Placement Placement::whole(std::string name, std::vector<std::int64_t> shape) {
  Placement p;
  p.name = std::move(name);
  p.shape = std::move(shape);
  return p;
}

Placement& Placement::cut(std::int64_t dim, std::vector<Range> ranges, std::string axis) {
  TRIREME_CHECK(!flat && std::none_of(cuts.begin(), cuts.end(),
                                      [&](const Cut& c) { return c.dim == dim || (!axis.empty() && c.axis == axis); }),
                "{} cannot be cut along dim {} and axis \"{}\": it is cut along one of them, or has a flat range", name,
                dim, axis);
  const auto after = std::find_if(cuts.begin(), cuts.end(), [&](const Cut& c) { return c.dim > dim; });
  cuts.insert(after, {dim, std::move(ranges), std::move(axis)});
  return *this;
}

const Cut* Placement::cut_along(std::int64_t dim) const {
  const auto found = std::find_if(cuts.begin(), cuts.end(), [&](const Cut& c) { return c.dim == dim; });
  return found == cuts.end() ? nullptr : &*found;
}

bool Placement::differs_along(const std::string& axis) const {
  return axis == stage_axis || std::find(flat_axes.begin(), flat_axes.end(), axis) != flat_axes.end() ||
         std::any_of(cuts.begin(), cuts.end(), [&](const Cut& c) { return c.axis == axis; });
}

std::int64_t Placement::full_numel() const { return c10::multiply_integers(shape); }

std::vector<std::int64_t> Placement::stored_shape() const {
  if (!stored_transposed) return shape;
  TRIREME_CHECK(shape.size() == 2, "{}: only a tensor of two dims can be stored transposed", name);
  return {shape[1], shape[0]};
}

std::vector<std::string> Placement::stored_names() const {
  if (stored_unstacked.empty()) return {name};
  std::vector<std::string> out;
  for (std::int64_t i = 0; i < shape.at(0); ++i)
    out.push_back(std::string(stored_unstacked).replace(stored_unstacked.find('*'), 1, std::to_string(i)));
  return out;
}

Placement Placement::in_whole(std::int64_t index, std::int64_t parts) const {
  const auto rows = shape.at(0), first = index * rows;
  auto out = *this;
  out.shape[0] = parts * rows;
  if (cut_along(0) == nullptr)
    out.cuts.insert(out.cuts.begin(), {0, {{first, first + rows}}});
  else
    for (auto& range : out.cuts.front().ranges) range = {range.begin + first, range.end + first};
  return out;
}

std::vector<std::int64_t> Placement::cut_shape() const {
  auto held = shape;
  for (const auto& c : cuts) held[static_cast<std::size_t>(c.dim)] = c.size();
  return held;
}

std::vector<std::int64_t> Placement::local_shape() const {
  if (flat) return {flat->size()};
  return cut_shape();
}

std::int64_t Placement::local_numel() const { return c10::multiply_integers(local_shape()); }

// Cut by cut, from the first dim on: each run of indices of the dims so far is widened to the indices up to the cut's
// dim, and each of these has the cut's ranges.
std::vector<Placement::Run> Placement::runs() const {
  check_bounds(*this);
  if (full_numel() == 0) return {};
  std::vector<Run> cut{{0, 0, 1}};
  std::size_t dims = 0;  // of whose indices, in row-major order, `cut` is made
  const auto widen = [&](std::size_t to) {
    std::int64_t inner = 1;
    for (; dims < to; ++dims) inner *= shape[dims];
    for (auto& run : cut) run = {run.full_begin * inner, run.local_begin * inner, run.size * inner};
  };
  for (const auto& [dim, ranges, axis] : cuts) {
    widen(static_cast<std::size_t>(dim));
    std::vector<Run> finer;
    std::int64_t local = 0;
    for (const auto& run : cut)
      for (auto outer = run.full_begin; outer < run.full_begin + run.size; ++outer)
        for (const auto& r : ranges) {
          if (r.size() > 0) finer.push_back({outer * shape[dims] + r.begin, local, r.size()});
          local += r.size();
        }
    cut = std::move(finer);
    ++dims;
  }
  widen(shape.size());
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

std::vector<Slice> stored_slices(const Slice& slice) {
  const auto& whole = slice.placement;
  if (whole.stored_unstacked.empty()) return {slice};
  auto part = whole;
  part.stored_unstacked.clear();
  part.flat.reset();
  part.shape.erase(part.shape.begin());
  std::vector<Range> held{{0, whole.shape[0]}};
  if (const auto* along = whole.cut_along(0)) {
    held = along->ranges;
    if (!along->axis.empty()) part.flat_axes.push_back(along->axis);  // its ranks have other parts, not copies
    part.cuts.erase(part.cuts.begin());
  }
  for (auto& cut : part.cuts) --cut.dim;

  std::vector<Slice> out;
  const auto names = whole.stored_names();
  const auto value = slice.value.detach();
  const auto size = part.local_numel();
  std::int64_t number = 0;  // of the part among those of the tensor shard
  for (const auto& range : held)
    for (auto i = range.begin; i < range.end; ++i, ++number) {
      part.name = names.at(static_cast<std::size_t>(i));
      if (!whole.flat) {
        out.push_back({part, value.select(0, number)});
        continue;
      }
      const auto first = number * size;
      const auto begin = std::max(first, whole.flat->begin), end = std::min(first + size, whole.flat->end);
      if (begin >= end) continue;
      part.flat = Range{begin - first, end - first};
      out.push_back({part, value.narrow(0, begin - whole.flat->begin, end - begin)});
    }
  return out;
}

std::vector<Slice> stored_slices(const std::vector<Slice>& slices) {
  std::vector<Slice> out;
  for (const auto& slice : slices)
    for (auto& stored : stored_slices(slice)) out.push_back(std::move(stored));
  return out;
}

}  // namespace trireme::shard
