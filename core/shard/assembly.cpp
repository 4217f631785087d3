#include "core/shard/assembly.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/comm/host_values.h"

namespace trireme::shard {
namespace {

using nlohmann::json;

json to_json(const Slice& slice) {
  const auto& p = slice.placement;
  json out{{"name", p.name}, {"shape", p.shape}, {"dtype", static_cast<int>(slice.value.scalar_type())}};
  for (const auto& cut : p.cuts) {
    json ranges = json::array();
    for (const auto& r : cut.ranges) ranges.push_back({r.begin, r.end});
    out["cuts"].push_back({{"dim", cut.dim}, {"ranges", std::move(ranges)}});
  }
  if (p.flat) out["flat"] = {p.flat->begin, p.flat->end};
  if (p.stored_transposed) out["stored_transposed"] = true;
  return out;
}

Placement to_placement(const json& from) {
  auto p = Placement::whole(from.at("name"), from.at("shape"));
  for (const auto& cut : from.value("cuts", json::array())) {
    std::vector<Range> ranges;
    for (const auto& r : cut.at("ranges")) ranges.push_back({r.at(0), r.at(1)});
    p.cut(cut.at("dim"), std::move(ranges));
  }
  if (from.contains("flat")) p.flat = Range{from.at("flat").at(0), from.at("flat").at(1)};
  p.stored_transposed = from.contains("stored_transposed");
  return p;
}

/// Of the copies along an axis, only the one on the rank at coordinate 0 counts.
bool counts(const Placement& placement, const comm::Mesh& mesh) {
  const auto axes = mesh.axes();
  return !placement.copy && std::all_of(axes.begin(), axes.end(), [&](const std::string& axis) {
    return mesh.coordinate(axis) == 0 || placement.differs_along(axis);
  });
}

}  // namespace

Assembly::Assembly(std::vector<Slice> mine, comm::Mesh& mesh) : world_(mesh.world()) {
  json local_slices = json::array();
  std::map<std::string, at::Tensor> held;
  for (const auto& slice : mine) {
    if (!counts(slice.placement, mesh)) continue;
    local_slices.push_back(to_json(slice));
    held[slice.placement.name] = slice.value;
  }
  std::map<std::string, std::pair<Entry, std::vector<Piece>>> found;
  for (const auto& slice : mine)
    if (held.count(slice.placement.name) != 0)
      found[slice.placement.name].first = {slice.placement.name, slice.placement.shape, slice.value.scalar_type(),
                                           slice.placement.stored_transposed};
  int rank = 0;
  for (const auto& text : comm::gather_text(world_.group(), local_slices.dump())) {
    for (const auto& item : parse_json(text)) {
      auto placement = to_placement(item);
      auto& [entry, pieces] = found[placement.name];
      entry = {placement.name, placement.shape, static_cast<at::ScalarType>(item.at("dtype").get<int>()),
               placement.stored_transposed};
      if (placement.local_numel() > 0) pieces.push_back({rank, std::move(placement)});
    }
    ++rank;
  }
  for (auto& [name, what] : found) {
    auto& [entry, pieces] = what;
    if (world_.rank() == 0) {
      std::int64_t elements = 0;
      for (const auto& piece : pieces) elements += piece.placement.local_numel();
      TRIREME_CHECK(elements == Placement::whole(name, entry.shape).full_numel(),
                    "the ranks together hold {} elements of {}, not each element exactly once", elements, name);
    }
    entries_.push_back(std::move(entry));
    pieces_.push_back(std::move(pieces));
    mine_.push_back(held.count(name) != 0 ? held.at(name) : at::Tensor());
  }
}

// By exchange_async(), on the connections that the world's group has: send() would make one more to each rank, which
// NCCL keeps until the end.
at::Tensor Assembly::collect(std::size_t entry) const {
  const auto& [name, shape, dtype, stored_transposed] = entries_.at(entry);
  const auto& mine = mine_[entry];
  if (world_.rank() != 0) {
    if (mine.numel() > 0)
      world_.group().exchange_async({{mine.detach().to(world_.device()).contiguous(), 0}}, {}).wait();
    return {};
  }
  auto full = at::empty(shape, dtype);
  for (const auto& [rank, placement] : pieces_[entry]) {
    auto piece = mine;
    if (rank != 0) {
      piece = at::empty(placement.local_shape(), at::TensorOptions(dtype).device(world_.device()));
      world_.group().exchange_async({}, {{piece, rank}}).wait();
    }
    placement.paste(full, piece.detach());
  }
  return full;
}

}  // namespace trireme::shard
