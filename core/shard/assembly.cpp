#include "core/shard/assembly.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/comm/text.h"

namespace trireme::shard {
namespace {

using nlohmann::json;

json to_json(const Slice& slice) {
  const auto& p = slice.placement;
  json ranges = json::array();
  for (const auto& r : p.ranges) ranges.push_back({r.begin, r.end});
  json out{{"name", p.name}, {"shape", p.shape}, {"dtype", static_cast<int>(slice.value.scalar_type())}};
  if (!p.ranges.empty()) out.update({{"dim", p.dim}, {"ranges", ranges}});
  if (p.flat) out["flat"] = {p.flat->begin, p.flat->end};
  return out;
}

Placement to_placement(const json& from) {
  auto p = Placement::whole(from.at("name"), from.at("shape"));
  if (from.contains("ranges")) {
    p.dim = from.at("dim");
    for (const auto& r : from.at("ranges")) p.ranges.push_back({r.at(0), r.at(1)});
  }
  if (from.contains("flat")) p.flat = Range{from.at("flat").at(0), from.at("flat").at(1)};
  return p;
}

/// Along each axis where others hold copies, the rank at coordinate 0 speaks for all.
bool counts(const Placement& placement, const comm::Mesh& mesh) {
  const auto axes = mesh.axes();
  return !placement.copy && std::all_of(axes.begin(), axes.end(), [&](const std::string& axis) {
    return mesh.coordinate(axis) == 0 || placement.differs_along(axis);
  });
}

}  // namespace

Assembly::Assembly(std::vector<Slice> mine, comm::Mesh& mesh) : world_(mesh.world()) {
  json told = json::array();
  std::map<std::string, at::Tensor> held;
  for (const auto& slice : mine) {
    if (!counts(slice.placement, mesh)) continue;
    told.push_back(to_json(slice));
    held[slice.placement.name] = slice.value;
  }
  std::map<std::string, std::size_t> index;
  std::vector<std::vector<Piece>> pieces;
  std::vector<Entry> entries;
  int rank = 0;
  for (const auto& text : comm::gather_text(world_.group(), world_.device(), told.dump())) {
    for (const auto& item : json::parse(text)) {
      auto placement = to_placement(item);
      const auto [at, fresh] = index.try_emplace(placement.name, entries.size());
      if (fresh) {
        entries.push_back({placement.name, placement.shape, static_cast<at::ScalarType>(item.at("dtype").get<int>())});
        pieces.emplace_back();
      }
      if (placement.local_numel() > 0) pieces[at->second].push_back({rank, std::move(placement)});
    }
    ++rank;
  }
  for (const auto& [name, at] : index) {
    std::int64_t found = 0;
    for (const auto& piece : pieces[at]) found += piece.placement.local_numel();
    TRIREME_CHECK(found == Placement::whole(name, entries[at].shape).full_numel(),
                  "the ranks hold {} elements of {} that they should hold once", found, name);
    entries_.push_back(std::move(entries[at]));
    pieces_.push_back(std::move(pieces[at]));
    mine_.push_back(held.count(name) != 0 ? held.at(name) : at::Tensor());
  }
}

at::Tensor Assembly::collect(std::size_t entry) const {
  const auto& [name, shape, dtype] = entries_.at(entry);
  const bool root = world_.rank() == 0;
  at::Tensor full;
  if (root) full = at::empty(shape, dtype);
  for (const auto& [rank, placement] : pieces_[entry]) {
    if (rank == world_.rank() && !root) world_.group().send(mine_[entry].detach().to(world_.device()).contiguous(), 0);
    if (!root) continue;
    at::Tensor piece = mine_[entry];
    if (rank != 0) {
      piece = at::empty(placement.local_shape(), at::TensorOptions(dtype).device(world_.device()));
      world_.group().recv(piece, rank);
    }
    placement.paste(full, piece.detach());
  }
  return full;
}

}  // namespace trireme::shard
