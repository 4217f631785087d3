#include "core/checkpoint/shard_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <utility>

#include "core/checkpoint/formats/safetensors.h"

namespace trireme::checkpoint {
namespace {

/// The ranks of this storage that have copies of some slices, and what each of them writes.
struct Copies {
  std::size_t mine = 0;              ///< this rank's number among them
  std::vector<std::uint64_t> bytes;  ///< that each writes so far
};

/// The axes along which ranks have copies of a slice.
std::vector<std::string> copied_along(const shard::Placement& placement, const comm::Mesh& mesh) {
  std::vector<std::string> out;
  for (const auto& axis : mesh.axes())
    if (!placement.differs_along(axis) && mesh.size(axis) > 1) out.push_back(axis);
  return out;
}

Copies copies_along(const std::vector<std::string>& axes, const comm::Mesh& mesh, const Storage& storage) {
  auto ranks = mesh.ranks_along(axes);
  std::erase_if(ranks, [&](int rank) { return !storage.has(rank); });
  const auto mine = std::find(ranks.begin(), ranks.end(), storage.rank) - ranks.begin();
  return {static_cast<std::size_t>(mine), std::vector<std::uint64_t>(ranks.size())};
}

/// Whether another stage writes the tensor, of which this rank has a copy, to this storage.
bool is_written_by_owner(const shard::Placement& placement, const comm::Mesh& mesh, const Storage& storage) {
  if (!placement.copy || storage.is_shared()) return placement.copy;
  const auto stages = mesh.ranks_along({placement.stage_axis});
  return std::all_of(stages.begin(), stages.end(), [&](int rank) { return storage.has(rank); });
}

/// The slice's placement as a manifest has it, and what it says of the full tensor.
ShardedTensor described(const shard::Slice& slice, const std::string& file) {
  auto placement = slice.placement;
  for (auto& cut : placement.cuts) cut.axis.clear();
  placement.flat_axes.clear();
  placement.stage_axis.clear();
  return {placement.shape,
          slice.value.scalar_type(),
          placement.stored_transposed,
          placement.stored_unstacked,
          {{file, std::move(placement)}}};
}

}  // namespace

std::vector<shard::Slice> own_slices(const std::vector<shard::Slice>& slices, const comm::Mesh& mesh,
                                     const Storage& storage) {
  std::map<std::vector<std::string>, Copies> dealt;  // by the axes
  // By name, because the order of the list depends on the bucket of a tensor, and so on what a rank holds of it.
  std::vector<std::size_t> order(slices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return slices[a].placement.name < slices[b].placement.name; });
  std::vector<shard::Slice> out;
  for (const auto i : order) {
    const auto& placement = slices[i].placement;
    if (is_written_by_owner(placement, mesh, storage)) continue;
    const auto axes = copied_along(placement, mesh);
    auto found = dealt.find(axes);
    if (found == dealt.end()) found = dealt.emplace(axes, copies_along(axes, mesh, storage)).first;
    auto& [mine, bytes] = found->second;
    const auto writer = placement.first_copy_counts
                            ? std::size_t{0}
                            : static_cast<std::size_t>(std::min_element(bytes.begin(), bytes.end()) - bytes.begin());
    // The full tensor's: under ZeRO, ranks with copies along one axis may hold other parts along another, so that only
    // what all of them know may decide.
    bytes[writer] += static_cast<std::uint64_t>(placement.full_numel()) * slices[i].value.element_size();
    if (writer == mine && (slices[i].value.numel() > 0 || placement.full_numel() == 0)) out.push_back(slices[i]);
  }
  return out;
}

Manifest write_shards(const std::string& folder, const std::string& group, const std::vector<shard::Slice>& own,
                      int rank, std::uint64_t most_bytes, const std::function<void()>& before_each) {
  std::vector<StoredEntry> entries;
  for (const auto& [placement, value] : own)
    entries.push_back({placement.name, value.sizes().vec(), value.scalar_type()});
  Manifest out;
  int number = 0;
  for (const auto& indices : split_by_size(entries, most_bytes)) {
    const auto file = fmt::format("{}-{:05d}-{:02d}.safetensors", group, rank, number++);
    out.files[file] =
        write_tensors((std::filesystem::path(folder) / file).string(), entries, indices, [&](std::size_t i) {
          before_each();
          return own[i].value;
        });
    for (const auto index : indices) out.tensors[group].insert({entries[index].name, described(own[index], file)});
  }
  return out;
}

}  // namespace trireme::checkpoint
