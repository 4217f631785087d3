#include "core/comm/host_share.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "core/base/file_descriptor.h"

namespace trireme::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kServed = std::chrono::minutes(1);

FileDescriptor open_socket() { return FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

/// An address in the abstract namespace, which leaves no file behind.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)};
}

bool same_user(const FileDescriptor& peer) {
  ucred who{};
  socklen_t length = sizeof who;
  return getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.uid == geteuid();
}

/// Calls transfer(done, left) until all bytes have been sent or received.
template <class Transfer>
bool transfer_all(std::size_t bytes, Transfer transfer) {
  for (std::size_t done = 0; done < bytes;) {
    const auto moved = transfer(done, bytes - done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return false;
    done += static_cast<std::size_t>(moved);
  }
  return true;
}

bool send_all(const FileDescriptor& to, const void* data, std::size_t bytes) {
  return transfer_all(bytes, [&](std::size_t done, std::size_t left) {
    return send(to.get(), static_cast<const char*>(data) + done, left, MSG_NOSIGNAL);
  });
}

bool receive_all(const FileDescriptor& from, void* data, std::size_t bytes) {
  return transfer_all(bytes, [&](std::size_t done, std::size_t left) {
    return recv(from.get(), static_cast<char*>(data) + done, left, 0);
  });
}

/// Sends the text to `others` ranks, then returns.
void serve(FileDescriptor listening, const std::string& text, int others) {
  const auto until = Clock::now() + kServed;
  while (others > 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd waiting{listening.get(), POLLIN, 0};
    if (left <= 0) return;
    const int ready = poll(&waiting, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return;
    const FileDescriptor other(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (other.get() < 0 || !same_user(other)) continue;
    --others;
    const std::uint64_t size = text.size();
    if (send_all(other, &size, sizeof size)) send_all(other, text.data(), text.size());
  }
}

std::optional<std::string> read_key(const std::string& name, std::chrono::milliseconds patience) {
  const auto [address, length] = address_of(name);
  const auto until = Clock::now() + patience;
  do {
    const auto first = open_socket();
    if (connect(first.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {  // not listening yet
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    std::uint64_t size = 0;
    if (!same_user(first) || !receive_all(first, &size, sizeof size)) return std::nullopt;
    std::string text(size, '\0');
    if (!receive_all(first, text.data(), text.size())) return std::nullopt;
    return text;
  } while (Clock::now() < until);
  return std::nullopt;
}

/// How often this rank has asked for the name before: texts of one name may differ, and a rank may be late.
int times_asked(const LaunchInfo& info, const std::string& name) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, int, std::string>, int> times;
  const std::lock_guard lock(mutex);
  return times[{info.job, info.rank, name}]++;
}

}  // namespace

std::string share_on_host(const LaunchInfo& info, const std::string& name, const std::function<std::string()>& make,
                          std::chrono::milliseconds patience) {
  if (info.job.empty() || info.local_size == 1) return make();
  const std::hash<std::string> short_form;  // an address has room for 107 bytes, and a job's name may be longer
  const auto key = fmt::format("trireme/{}/{:x}/{:x}/{}", geteuid(), short_form(info.job), short_form(name),
                               times_asked(info, name));
  if (info.local_rank != 0) {
    auto text = read_key(key, patience);
    return text ? *std::move(text) : make();
  }
  // Listens before make() is called, so that the other ranks wait for it instead of calling it too.
  auto listening = open_socket();
  const auto [address, length] = address_of(key);
  if (bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listening.get(), info.local_size) != 0)
    return make();
  auto text = make();
  std::thread(serve, std::move(listening), text, info.local_size - 1).detach();
  return text;
}

}  // namespace trireme::comm
