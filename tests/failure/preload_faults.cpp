// Sets file_faults of each rank from the environment when this library is preloaded into a run of the command:
//   FAULT_FOLDER   operations below it count
//   FAULT_RANK     the rank that meets the fault; unset: that of a run without ranks
//   FAULT_AT, FAULT_NAMED, FAULT_ERROR, FAULT_LASTING   see FileFaults
//   FAULT_WAIT     operations of all ranks wait while there is a file of this name
//   FAULT_COUNT    each rank has the number of its operations, 64 bits, in the file of this name with ".RANK" at its
//   end
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tests/failure/file_faults.h"

namespace {

using trireme::tests::file_faults;

const char* text(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

const char* own_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "RANK"})
    if (*text(name) != '\0') return text(name);
  return "";
}

/// The counter in a file that is mapped into memory: the command ends without calling destructors.
std::atomic<std::int64_t>* counter_in(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ::ftruncate(file, sizeof(std::int64_t)) != 0) return nullptr;
  void* map = ::mmap(nullptr, sizeof(std::int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  return map == MAP_FAILED ? nullptr : static_cast<std::atomic<std::int64_t>*>(map);
}

// Of the launcher, the ranks and what starts them, only the ranks write to a run's folder.
__attribute__((constructor)) void begin() {
  if (std::strcmp(program_invocation_short_name, "trireme-worker") != 0 || *text("FAULT_FOLDER") == '\0') return;
  auto* faults = new trireme::tests::FileFaults;  // for good: the last operations come after the destructors
  faults->folder = text("FAULT_FOLDER");
  if (std::strcmp(text("FAULT_RANK"), own_rank()) == 0) {
    faults->at = std::atoll(text("FAULT_AT"));
    faults->named = text("FAULT_NAMED");
  }
  faults->error = std::atoi(text("FAULT_ERROR"));
  faults->wait_while = text("FAULT_WAIT");
  faults->lasting = *text("FAULT_LASTING") != '\0';
  if (*text("FAULT_COUNT") != '\0')
    if (auto* count = counter_in(std::string(text("FAULT_COUNT")) + "." + own_rank()); count != nullptr)
      faults->count = count;
  file_faults = faults;
}

}  // namespace
