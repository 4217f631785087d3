// Pipe: a stream of bytes to another rank, and one from it. Nothing here blocks.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>

namespace trireme::comm::native {

class Pipe {
 public:
  virtual ~Pipe() = default;
  /// Writes the beginning of these parts, as much as there is room for. Returns the number of bytes; the other rank is
  /// woken for them. When there was not room for all, this rank is woken as soon as there may be.
  virtual std::size_t put(std::span<const iovec> parts) = 0;
  /// Reads at most `bytes`, as many as have arrived. Returns their number.
  virtual std::size_t get(void* data, std::size_t bytes) = 0;
  /// Whether the other side closed it, or it broke; what has arrived before has been read then.
  [[nodiscard]] virtual bool closed() const { return false; }
  /// Whether get() may find something, at less cost than calling it.
  [[nodiscard]] virtual bool readable() const = 0;
};

}  // namespace trireme::comm::native
