// The input is a manifest.json, and after a NUL byte, if it has one, the content of the file "x" beside it. The files
// "a" and "b" are there too: the halves of a tensor, and whole tensors. The manifest is refused with a CheckpointError,
// or its files can be verified and the tensors that it describes can be read, or are refused one by one: also when the
// verification failed, for a CRC-32 is no protection against intent, but then only small ones. The memory for a tensor
// is reserved by what the manifest says, which verified sizes limit.
#include <ATen/ops/arange.h>

#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/sharded_tensors.h"
#include "tests/fuzz/memory_folder.h"
#include "tests/fuzz/read_slices.h"

using namespace trireme;

namespace {

/// A checkpoint's folder with all but the manifest.
struct Folder : fuzz::MemoryFolder {
  Folder() {
    const auto full = at::arange(8, at::kFloat).view({4, 2});
    checkpoint::write_safetensors(path() + "/a", {{"t", full.narrow(0, 0, 2)}, {"u", at::arange(3, at::kLong)}});
    checkpoint::write_safetensors(path() + "/b", {{"t", full.narrow(0, 2, 2)}, {"v", at::arange(4, at::kHalf)}});
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  const auto input = fuzz::text_of(data, size);
  const auto end = input.find('\0');
  folder.write(checkpoint::kManifest, input.substr(0, end));
  folder.write("x", end == input.npos ? "" : input.substr(end + 1));
  checkpoint::Manifest manifest;
  bool fits = false;
  try {
    manifest = checkpoint::read_manifest(folder.path());
    checkpoint::verify_files(folder.path(), manifest, checkpoint::Verify::sizes);
    fits = true;
    checkpoint::verify_files(folder.path(), manifest, checkpoint::Verify::content);
  } catch (const CheckpointError&) {
  }
  for (const auto& [group, tensors] : manifest.tensors) {
    const checkpoint::ShardedTensors stored(folder.path(), group, manifest);
    for (const auto& [name, tensor] : tensors) {
      const auto whole = shard::Placement::whole(name, tensor.shape);
      if (fits || whole.full_numel() <= fuzz::kMostElements) fuzz::read_slices(stored, name);
    }
    if (fits)
      for (const auto& name : stored.names()) fuzz::read_slices(stored, name);
  }
  try {
    const auto part = checkpoint::read_part(std::string(input.substr(0, end)));
    (void)checkpoint::manifest_text(part);
  } catch (const CheckpointError&) {
  }
  return 0;
}
