#include "core/base/files/output_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/files.h"

namespace trireme {

OutputFolder::OutputFolder(std::string path, int rank) : path_(std::move(path)) {
  if (rank != 0) return;
  TRIREME_REQUIRE(!path_.empty(), "the folder for the results has an empty name; write . for the working directory");
  make_folder(path_);
  const auto file = path_in(path_, ".lock");
  lock_ = FileDescriptor(::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
  if (!lock_) throw CheckpointError(write_problem(file, "cannot be written", errno));
  // Whoever only asks whether a run is there, as `trireme runs` does, has the lock for an instant.
  constexpr int kTries = 20;
  for (int tried = 0; tried < kTries; ++tried) {
    if (tried > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    // On file systems without locks (some network ones) the folder is not protected.
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  }
  throw ConfigError(fmt::format("another run is writing to {}; wait until it ends, or name another folder", path_));
}

}  // namespace trireme
