#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/text.h"
#include "core/checkpoint/manifest.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

/// A reader reserves memory for a tensor before it opens the files.
void check_room(const Manifest& manifest, const std::string& path) {
  std::map<std::string, std::uint64_t> needed;
  for (const auto& [group, tensors] : manifest.tensors)
    for (const auto& [name, tensor] : tensors)
      for (const auto& slice : tensor.slices) {
        auto& bytes = needed[slice.file];
        const auto more = static_cast<std::uint64_t>(slice.placement.local_numel()) * c10::elementSize(tensor.dtype);
        if (__builtin_add_overflow(bytes, more, &bytes) || bytes > manifest.files.at(slice.file).bytes)
          throw CheckpointError(
              fmt::format("{}: the slices in \"{}\" need more than its {} bytes; one is of the tensor \"{}\"", path,
                          slice.file, manifest.files.at(slice.file).bytes, name));
      }
}

}  // namespace

std::vector<StoredSlice> distinct_slices(const ShardedTensor& tensor) {
  std::set<std::pair<std::vector<shard::Cut>, std::optional<shard::Range>>> seen;
  std::vector<StoredSlice> out;
  for (const auto& slice : tensor.slices)
    if (seen.emplace(slice.placement.cuts, slice.placement.flat).second) out.push_back(slice);
  return out;
}

void check_complete(const Manifest& manifest, const std::string& path) {
  check_room(manifest, path);
  for (const auto& [group, tensors] : manifest.tensors)
    for (const auto& [name, tensor] : tensors) {
      const auto full = shard::Placement::whole(name, tensor.shape).full_numel();
      std::int64_t held = 0;
      const auto distinct = distinct_slices(tensor);
      if (manifest.host_of.empty() && distinct.size() != tensor.slices.size())
        throw CheckpointError(fmt::format("{}: tensor \"{}\" of the {} has a slice twice", path, name, group));
      for (const auto& slice : distinct)
        if (__builtin_add_overflow(held, slice.placement.local_numel(), &held)) held = -1;
      if (held != full)
        throw CheckpointError(fmt::format("{}: tensor \"{}\" of the {} has {} elements, but its slices {}", path, name,
                                          group, full, held));
    }
}

std::string file_problem(const std::string& path, const FileDigest& listed, Verify how) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) return fmt::format("{}: {}, but the manifest lists it", path, error.message());
  if (size != listed.bytes)
    return fmt::format("{} {}: {} bytes, but the manifest says {}", path,
                       size < listed.bytes ? "is truncated" : "has grown", size, listed.bytes);
  if (how != Verify::content) return "";
  const auto sum = digest_file(path).crc32;
  if (sum == listed.crc32) return "";
  return fmt::format("{} is damaged: CRC-32 {:08x}, but the manifest says {:08x}", path, sum, listed.crc32);
}

bool is_elsewhere(const std::string& folder, const Manifest& manifest, const std::string& file) {
  std::error_code error;
  return manifest.host_of.contains(file) && !fs::exists(fs::path(folder) / file, error) && !error;
}

std::string missing_parts(const std::string& folder, const Manifest& manifest) {
  std::map<int, std::vector<std::string>> missing;
  for (const auto& [file, host] : manifest.host_of)
    if (is_elsewhere(folder, manifest, file)) missing[host].push_back(file);
  std::vector<std::string> parts;
  for (const auto& [host, files] : missing)
    parts.push_back(
        fmt::format("{} of host {}", text::first_few(files), manifest.hosts.at(static_cast<std::size_t>(host))));
  return text::join(parts);
}

void verify_files(const std::string& folder, const Manifest& manifest, Verify how) {
  for (const auto& [name, digest] : manifest.files) {
    if (is_elsewhere(folder, manifest, name)) continue;
    if (const auto problem = file_problem(path_in(folder, name), digest, how); !problem.empty())
      throw CheckpointError(problem);
  }
}

}  // namespace trireme::checkpoint
