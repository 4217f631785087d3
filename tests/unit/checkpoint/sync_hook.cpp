// This program's fsync() overrides the C library's, also for libtrireme.
#include "tests/unit/checkpoint/sync_hook.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

extern "C" int fsync(int file) {
  if (trireme::checkpoint::sync_hook) {
    const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file)).string();
    if (const int error = trireme::checkpoint::sync_hook(path); error != 0) {
      errno = error;
      return -1;
    }
  }
  static const auto call = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "fsync"));
  return call(file);
}
