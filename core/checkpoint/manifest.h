// The manifest of a checkpoint: manifest.json, which lists every file with its size and checksum, and for each tensor
// the slices in which the ranks wrote it. It is written last, so a folder that has one is complete.
//
//   {"format": 2,
//    "files": {"weights-00000-00.safetensors": {"bytes": 131072, "crc32": "01ab23cd",
//                  "blocks": {"bytes": 65536, "sums": "89ef67ab01ab23cd"}}, "state.json": ...},
//    "tensors": {"weights": {"layer.weight": {"dtype": "F32", "shape": [8, 16], "slices": [
//        {"file": "weights-00000-00.safetensors", "dim": 0, "ranges": [[0, 4]]},
//        {"file": "weights-00001-00.safetensors", "dim": 0, "ranges": [[4, 8]], "flat": [0, 64]}, ...]}}}}
//
// Where hosts do not share a file system, each has the files of its ranks, and this manifest: then there is
// "hosts": ["a", "b"], and "host": 1 with each file that only one of them has.
//
// "sums" has eight digits for each block (core/base/files/digest.h); a file without "blocks" is one block.
//
// "dim" and "ranges" are those of the cut of a shard::Placement, and "flat" is its flat range; a slice without them is
// the full tensor. One with several cuts has "cuts": [{"dim": 0, "ranges": [[0, 2]]}, {"dim": 2, "ranges": [[4, 8]]}]
// in their place. In its file, a slice has the name of its tensor. Format 1 has no "tensors": weights.safetensors,
// optimizer.safetensors and average.safetensors hold full tensors.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/files/files.h"
#include "core/shard/placement.h"

namespace trireme::checkpoint {

inline constexpr const char* kManifest = "manifest.json";
inline constexpr int kManifestFormat = 2;

/// A slice of a tensor, and the file beside the manifest that holds it.
struct StoredSlice {
  std::string file;
  shard::Placement placement;  ///< without axes
};

/// A tensor that is stored in slices. They have the layout of the memory, whatever other files of the model have.
struct ShardedTensor {
  std::vector<std::int64_t> shape;  ///< in memory
  at::ScalarType dtype;
  bool stored_transposed = false;  ///< see Placement: other files of the model hold the transpose
  std::string stored_unstacked{};  ///< see Placement: other files of the model hold its parts, with these names
  std::vector<StoredSlice> slices;
};
using ShardedTensorMap = std::map<std::string, ShardedTensor>;

/// Without the copies that other hosts have: the first of those with equal placements.
std::vector<StoredSlice> distinct_slices(const ShardedTensor& tensor);

struct Manifest {
  int format = kManifestFormat;
  std::map<std::string, FileDigest> files;
  /// Of hosts that do not share a file system: their names, and of each file that only one of them has, its number.
  /// Their copies of a slice may be in several files.
  std::vector<std::string> hosts{};
  std::map<std::string, int> host_of{};
  std::map<std::string, ShardedTensorMap> tensors;  ///< by "weights", "optimizer", "average"
};

std::string manifest_text(const Manifest& manifest);
/// The manifest of a part, such as of what one rank has written, from its manifest_text(). @throws CheckpointError
Manifest read_part(const std::string& text);
/// Adds the files and slices of a part. @throws LogicError when the two have different tensors of one name.
void add_part(Manifest& manifest, const Manifest& part);
/// @throws CheckpointError that begins with `path`, unless the slices of every tensor have all of its elements, and the
/// listed files have room for the slices
void check_complete(const Manifest& manifest, const std::string& path);

/// Reads and checks the manifest of a folder, which is not trusted: names of files are plain names, slices lie within
/// their tensors, have as many elements together and fit in their files. @throws CheckpointError that names the file
/// and the problem
Manifest read_manifest(const std::string& folder);

/// How a checkpoint is verified against its manifest when it is opened.
enum class Verify {
  sizes,    ///< every file exists with its size: for ranks that follow a rank that verified the content
  record,   ///< also the CRC-32 of those files that no rank verifies in part: all without slices, but best.safetensors
  content,  ///< also the CRC-32 of every file, which reads every byte
};

/// Why the file differs from what the manifest lists, beginning with its path; "" if it does not.
std::string file_problem(const std::string& path, const FileDigest& listed, Verify how);
/// Whether the file may be on another host, and is not here.
bool is_elsewhere(const std::string& folder, const Manifest& manifest, const std::string& file);
/// The files that are not here: "weights-00001-00.safetensors of host b"; "" when there are none.
std::string missing_parts(const std::string& folder, const Manifest& manifest);
/// @throws CheckpointError for the first file that differs, of those that are not elsewhere
void verify_files(const std::string& folder, const Manifest& manifest, Verify how);

}  // namespace trireme::checkpoint
