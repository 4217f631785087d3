#include "core/comm/flight/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file_descriptor.h"

namespace trireme::comm::flight {

MappedFile::~MappedFile() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

MappedFile MappedFile::map(int descriptor, std::size_t bytes, bool writable) {
  MappedFile made;
  void* const memory = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return made;
  made.memory_ = memory;
  made.bytes_ = bytes;
  return made;
}

MappedFile MappedFile::create(const std::string& path, std::size_t bytes) {
  const FileDescriptor descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!descriptor || posix_fallocate(descriptor.get(), 0, static_cast<off_t>(bytes)) != 0) return {};
  return map(descriptor.get(), bytes, true);
}

MappedFile MappedFile::open(const std::string& path, std::size_t bytes, bool writable) {
  const FileDescriptor descriptor(::open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW));
  struct stat file {};
  if (!descriptor || fstat(descriptor.get(), &file) != 0 || file.st_size != static_cast<off_t>(bytes)) return {};
  return map(descriptor.get(), bytes, writable);
}

}  // namespace trireme::comm::flight
