// The input is a safetensors file. It is refused with a CheckpointError, or every tensor of it can be read.
#include "core/checkpoint/formats/safetensors.h"
#include "tests/fuzz/memory_folder.h"
#include "tests/fuzz/read_slices.h"

using namespace trireme;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::MemoryFolder folder;
  const auto path = folder.write("x.safetensors", fuzz::text_of(data, size));
  try {
    const checkpoint::SafeTensors file(path);
    for (const auto& name : file.names()) {
      (void)file.read(name);
      unsigned sum = 0;
      for (const auto byte : file.bytes(name)) sum += std::to_integer<unsigned>(byte);
      asm volatile("" : : "r"(sum));  // so that every byte is really read
      fuzz::read_slices(file, name);
    }
    (void)file.read("no such tensor");
  } catch (const CheckpointError&) {
  }
  return 0;
}
