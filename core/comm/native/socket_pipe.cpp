#include "core/comm/native/socket_pipe.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace trireme::comm::native {
namespace {

void set_option(int socket, int level, int name, int value) { setsockopt(socket, level, name, &value, sizeof value); }

}  // namespace

SocketPipe::SocketPipe(FileDescriptor socket, int epoll, void* tag)
    : socket_(std::move(socket)), epoll_(epoll), tag_(tag), buffer_(new std::byte[kBuffer]) {
  const int fd = socket_.get();
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A host that has gone without closing its connections answers no probe: noticed after about 30 s. TCP_USER_TIMEOUT
  // would also end the connection to a live process that is stopped and reads nothing.
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
  epoll_event event{.events = EPOLLIN, .data = {.ptr = tag_}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

SocketPipe::~SocketPipe() {
  if (!closed_) epoll_ctl(epoll_, EPOLL_CTL_DEL, socket_.get(), nullptr);
}

void SocketPipe::watch(bool for_room) {
  if (for_room == waits_for_room_ || closed_) return;
  waits_for_room_ = for_room;
  epoll_event event{.events = EPOLLIN | (for_room ? static_cast<std::uint32_t>(EPOLLOUT) : 0u), .data = {.ptr = tag_}};
  epoll_ctl(epoll_, EPOLL_CTL_MOD, socket_.get(), &event);
}

std::size_t SocketPipe::put(std::span<const iovec> parts) {
  std::size_t wanted = 0;
  for (const auto& part : parts) wanted += part.iov_len;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());  // sendmsg does not write to it
  message.msg_iovlen = parts.size();
  ssize_t sent = -1;
  do sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  // A broken connection is reported by get(), after what had arrived.
  const bool full = sent >= 0 ? static_cast<std::size_t>(sent) < wanted : errno == EAGAIN;
  watch(full);
  return sent < 0 ? 0 : static_cast<std::size_t>(sent);
}

std::size_t SocketPipe::receive(void* data, std::size_t bytes) {
  if (closed_ || !readable_) return 0;
  for (;;) {
    const auto got = recv(socket_.get(), data, bytes, MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got < 0 && errno == EINTR) continue;
    readable_ = false;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    epoll_ctl(epoll_, EPOLL_CTL_DEL, socket_.get(), nullptr);
    closed_ = true;
    return 0;
  }
}

std::size_t SocketPipe::get(void* data, std::size_t bytes) {
  if (begin_ == end_) {
    if (bytes >= kBuffer / 2) return receive(data, bytes);
    begin_ = 0;
    end_ = receive(buffer_.get(), kBuffer);
  }
  const auto count = std::min(bytes, end_ - begin_);
  if (count > 0) std::memcpy(data, buffer_.get() + begin_, count);
  begin_ += count;
  return count;
}

}  // namespace trireme::comm::native
