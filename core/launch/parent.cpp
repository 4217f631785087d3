#include "core/launch/parent.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

namespace trireme::parent {
namespace {

using ranks::Failure;
using ranks::FrameHeader;
using ranks::FrameKind;

/// Whether it is the pipe with this inode: a program may have closed it, and opened a file under its number.
bool is_pipe(int descriptor, unsigned long long inode) {
  struct stat file {};
  return fstat(descriptor, &file) == 0 && S_ISFIFO(file.st_mode) && file.st_ino == inode;
}

struct ToParent {
  int descriptor = -1;  ///< -1: there is no pipe
  unsigned long long inode = 0;
};

/// Programs that this one starts do not get it.
ToParent find_pipe() {
  const char* text = std::getenv(ranks::kReportVariable);
  ToParent found;
  if (text == nullptr || std::sscanf(text, "%d %llu", &found.descriptor, &found.inode) != 2 ||
      !is_pipe(found.descriptor, found.inode))
    return {};
  fcntl(found.descriptor, F_SETFD, FD_CLOEXEC);
  return found;
}

const ToParent& to_parent() {
  static const auto found = find_pipe();
  return found;
}

/// Safe in a handler.
void write_frame(FrameKind kind, std::int64_t value, std::string_view text) {
  std::array<char, sizeof(FrameHeader) + ranks::kMostText> bytes{};
  const auto& [descriptor, inode] = to_parent();
  const FrameHeader header{kind, static_cast<std::uint32_t>(text.size()), value, getpid()};
  if (!is_pipe(descriptor, inode)) return;
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, text.data(), text.size());
  while (write(descriptor, bytes.data(), sizeof header + text.size()) < 0 && errno == EINTR) continue;
}

void tell(FrameKind kind, std::int64_t value = 0, std::string_view text = "") {
  if (!listens()) return;
  static std::mutex mutex;  // the frames of a long text follow each other
  const std::scoped_lock lock(mutex);
  for (; text.size() > ranks::kMostText; text.remove_prefix(ranks::kMostText))
    write_frame(FrameKind::text, 0, text.substr(0, ranks::kMostText));
  write_frame(kind, value, text);
}

}  // namespace

bool listens() { return to_parent().descriptor >= 0; }

void failed(const Failure& failure) {
  std::fflush(stdout);  // what the rank has printed comes first
  tell(failure.of_all ? FrameKind::failed_alike : FrameKind::failed, failure.code,
       failure.program + '\0' + failure.message);
}

void reached() { tell(FrameKind::reached); }
void done(const std::string& result) { tell(FrameKind::done, 0, result); }
void saved(std::int64_t step) { tell(FrameKind::saved, step); }
void may_fit_with(std::int64_t micro_batch) { tell(FrameKind::smaller_micro_batch, micro_batch); }
void trains_in(const std::string& run_dir) { tell(FrameKind::trains_in, 0, run_dir); }
void takes_signals() { tell(FrameKind::takes_signals); }
void stopped() { tell(FrameKind::stopped); }
void unsaved(const std::string& text) { tell(FrameKind::unsaved, 0, text); }
void trained() { tell(FrameKind::trained); }

void late(std::int64_t seconds) {
  if (listens()) write_frame(FrameKind::late, seconds, "");
}

}  // namespace trireme::parent
