// The part of safetensors.h that communicates: apart from it, so that a program that only reads files needs no ranks.
#include <c10/core/ScalarType.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/shared_errors.h"

namespace trireme::checkpoint {

SliceSource::SliceSource(const std::vector<shard::Slice>& slices, comm::Mesh& mesh, std::optional<at::ScalarType> dtype,
                         ChangeTensor change)
    : assembly_(shard::stored_slices(slices), mesh), change_(std::move(change)), world_(mesh.world()) {
  for (const auto& [name, shape, own, transposed] : assembly_.entries())
    entries_.push_back({name, transposed ? std::vector<std::int64_t>(shape.rbegin(), shape.rend()) : shape,
                        dtype && c10::isFloatingType(own) ? *dtype : own});
}

at::Tensor SliceSource::value(std::size_t entry) {
  const auto& what = assembly_.entries()[entry];
  auto full = assembly_.collect(entry);
  ++collected_;
  if (change_) full = change_(what.name, full);
  return converted(what.stored_transposed ? full.t() : full, entries_[entry]);
}

FileDigest SliceSource::write(const std::function<FileDigest()>& write_all) {
  const auto order = file_order(entries_);
  FileDigest digest;
  std::string problem;
  if (world_.rank() == 0) problem = problem_of([&] { digest = write_all(); }, "a file cannot be written");
  for (; collected_ < order.size(); ++collected_) static_cast<void>(assembly_.collect(order[collected_]));
  problem = problem_of_first_rank(world_, problem);
  if (!problem.empty()) throw CheckpointError(problem);
  return digest;
}

FileDigest write_slices(const std::string& path, const std::vector<shard::Slice>& slices, comm::Mesh& mesh,
                        const std::map<std::string, std::string>& metadata) {
  SliceSource source(slices, mesh);
  return source.write([&] {
    return write_tensors(
        path, source.entries(), file_order(source.entries()), [&](std::size_t i) { return source.value(i); }, metadata);
  });
}

}  // namespace trireme::checkpoint
