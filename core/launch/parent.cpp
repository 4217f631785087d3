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

/// The pipe to the parent; -1: there is none. Programs that this one starts do not get it.
int find_pipe() {
  const char* text = std::getenv(ranks::kReportVariable);
  int descriptor = -1;
  unsigned long long inode = 0;
  struct stat file {};
  if (text == nullptr || std::sscanf(text, "%d %llu", &descriptor, &inode) != 2 || fstat(descriptor, &file) != 0 ||
      !S_ISFIFO(file.st_mode) || file.st_ino != inode)
    return -1;
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return descriptor;
}

int to_parent() {
  static const int descriptor = find_pipe();
  return descriptor;
}

/// Safe in a handler.
void write_frame(FrameKind kind, std::int64_t value, std::string_view text) {
  std::array<char, sizeof(FrameHeader) + ranks::kMostText> bytes{};
  const FrameHeader header{kind, static_cast<std::uint32_t>(text.size()), value};
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, text.data(), text.size());
  while (write(to_parent(), bytes.data(), sizeof header + text.size()) < 0 && errno == EINTR) continue;
}

void tell(FrameKind kind, std::int64_t value = 0, std::string_view text = "") {
  if (!listens()) return;
  static std::mutex mutex;  // the frames of a long text follow each other
  const std::scoped_lock lock(mutex);
  for (; text.size() > ranks::kMostText; text.remove_prefix(ranks::kMostText))
    write_frame(FrameKind::text, 0, text.substr(0, ranks::kMostText));
  write_frame(kind, value, text);
}

FrameKind kind_of(Failure::Reason reason) {
  if (reason == Failure::Reason::of_all) return FrameKind::failed_alike;
  return reason == Failure::Reason::lost_peer ? FrameKind::lost_peer : FrameKind::failed;
}

}  // namespace

bool listens() { return to_parent() >= 0; }

void failed(const Failure& failure) {
  std::fflush(stdout);  // what the rank has printed comes first
  tell(kind_of(failure.reason), failure.code, failure.program + '\0' + failure.message);
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
