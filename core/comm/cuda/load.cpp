// Loads libtrireme_cuda.so, which is in the same directory as libtrireme.so.
#include <dlfcn.h>
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/comm/transport.h"

namespace trireme::comm {

const CudaLibrary& load_cuda_library() {
  Dl_info own_library{};
  std::string path = "libtrireme_cuda.so";
  if (dladdr(reinterpret_cast<const void*>(&load_cuda_library), &own_library) != 0 &&
      own_library.dli_fname != nullptr) {
    const std::string mine = own_library.dli_fname;
    if (const auto slash = mine.rfind('/'); slash != std::string::npos) path = mine.substr(0, slash + 1) + path;
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw ConfigError(fmt::format(
        "this machine has CUDA devices, but {}; use device \"cpu\", or install Trireme with its CUDA library",
        dlerror()));
  const auto* entry = static_cast<const CudaLibrary*>(dlsym(library, "trireme_cuda_entry"));
  if (entry == nullptr)
    throw ConfigError(fmt::format("{} belongs to another version of Trireme: it has no trireme_cuda_entry", path));
  return *entry;
}

}  // namespace trireme::comm
