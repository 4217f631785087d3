// A limit on the size of files, in place of a full disk.
#pragma once

#include <sys/resource.h>

#include <csignal>
#include <cstdint>

namespace trireme::tests {

/// While it exists, this process cannot write beyond `bytes` of a file: the error is EFBIG, "File too large".
class FileLimit {
 public:
  explicit FileLimit(std::uintmax_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

}  // namespace trireme::tests
