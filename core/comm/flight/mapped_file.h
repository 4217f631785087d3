// A file of a fixed size, mapped into memory and shared with other processes. Uses nothing of LibTorch.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace trireme::comm::flight {

class MappedFile {
 public:
  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  /// Makes the file, zeroed, or maps the one that exists. Its blocks are reserved, so that a full disk is noticed here
  /// and not by a signal at a later store. Empty when that fails.
  static MappedFile create(const std::string& path, std::size_t bytes);
  /// Maps an existing file of exactly this size; empty when there is none.
  static MappedFile open(const std::string& path, std::size_t bytes, bool writable);

  [[nodiscard]] void* memory() const { return memory_; }
  explicit operator bool() const { return memory_ != nullptr; }

 private:
  static MappedFile map(int descriptor, std::size_t bytes, bool writable);
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace trireme::comm::flight
