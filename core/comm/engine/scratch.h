// Scratch: a pool of buffers that collectives receive into. A new buffer of a megabyte costs more in page faults than
// the transfer that fills it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace trireme::comm::engine {

/// Thread-safe. Buffers are aligned to 64 bytes and sized to powers of two.
class Scratch : public std::enable_shared_from_this<Scratch> {
 public:
  /// A buffer of at least `bytes`. It returns to the pool when the pointer and all its copies are destroyed.
  std::shared_ptr<std::byte> take(std::size_t bytes);
  ~Scratch();

 private:
  void give_back(std::byte* buffer, std::size_t size);

  static constexpr std::size_t kKeepBytes = 64u << 20;  // buffers beyond this total are freed at once
  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;
  std::size_t held_bytes_ = 0;
};

}  // namespace trireme::comm::engine
