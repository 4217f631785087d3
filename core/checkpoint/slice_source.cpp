// The part of safetensors.h that communicates: apart from it, so that a program that only reads files needs no ranks.
#include <c10/core/ScalarType.h>

#include <utility>

#include "core/checkpoint/safetensors.h"

namespace trireme::checkpoint {

SliceSource::SliceSource(const std::vector<shard::Slice>& slices, comm::Mesh& mesh, std::optional<at::ScalarType> dtype,
                         ChangeTensor change)
    : assembly_(slices, mesh), change_(std::move(change)) {
  for (const auto& [name, shape, own, transposed] : assembly_.entries())
    entries_.push_back({name, transposed ? std::vector<std::int64_t>(shape.rbegin(), shape.rend()) : shape,
                        dtype && c10::isFloatingType(own) ? *dtype : own});
}

at::Tensor SliceSource::value(std::size_t entry) const {
  const auto& what = assembly_.entries()[entry];
  auto full = assembly_.collect(entry);
  if (change_) full = change_(what.name, full);
  return converted(what.stored_transposed ? full.t() : full, entries_[entry]);
}

void SliceSource::serve() const {
  for (const auto index : file_order(entries_)) static_cast<void>(assembly_.collect(index));
}

FileDigest write_slices(const std::string& path, const std::vector<shard::Slice>& slices, comm::Mesh& mesh,
                        const std::map<std::string, std::string>& metadata) {
  const SliceSource source(slices, mesh);
  if (mesh.world().rank() == 0)
    return write_tensors(
        path, source.entries(), file_order(source.entries()), [&](std::size_t i) { return source.value(i); }, metadata);
  source.serve();
  return {};
}

}  // namespace trireme::checkpoint
