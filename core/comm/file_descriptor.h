// A file descriptor that the destructor closes, and the text of the error when there is none.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace trireme::comm {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

/// "cannot open a socket: Too many open files; raise the limit with `ulimit -n`"
inline std::string no_descriptor(const char* what, int error) {
  const bool exhausted = error == EMFILE || error == ENFILE;
  return fmt::format("{}: {}{}", what, std::strerror(error), exhausted ? "; raise the limit with `ulimit -n`" : "");
}

}  // namespace trireme::comm
