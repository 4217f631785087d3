// SocketPipe: a pipe to a rank of another host, over a TCP connection.
#pragma once

#include <memory>

#include "core/comm/file_descriptor.h"
#include "core/comm/native/pipe.h"

namespace trireme::comm::native {

class SocketPipe final : public Pipe {
 public:
  /// @param socket a connected socket.
  /// @param epoll watches the socket, with `tag` as its data: for arriving bytes, and for room after a put() that could
  /// not write everything. It must outlive the pipe.
  SocketPipe(FileDescriptor socket, int epoll, void* tag);
  ~SocketPipe() override;
  std::size_t put(std::span<const iovec> parts) override;
  std::size_t get(void* data, std::size_t bytes) override;
  [[nodiscard]] bool closed() const override { return closed_ && begin_ == end_; }
  [[nodiscard]] bool readable() const override { return readable_ || begin_ != end_; }
  /// The epoll reported the socket.
  void notice() { readable_ = true; }

 private:
  static constexpr std::size_t kBuffer = 64u << 10;
  std::size_t receive(void* data, std::size_t bytes);
  void watch(bool for_room);

  FileDescriptor socket_;
  int epoll_;
  void* tag_;
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of what is in the buffer
  bool readable_ = true, closed_ = false, waits_for_room_ = false;
};

}  // namespace trireme::comm::native
