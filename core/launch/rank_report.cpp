#include "core/launch/rank_report.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace trireme::ranks {

std::string report_variable(int pipe) {
  struct stat file {};
  fstat(pipe, &file);
  return fmt::format("{} {}", pipe, file.st_ino);
}

void merge(RankReport& all, const RankReport& rank) {
  all.saved_step = std::max(all.saved_step, rank.saved_step);
  all.smaller_micro_batch = std::max(all.smaller_micro_batch, rank.smaller_micro_batch);
  all.training = std::max(all.training, rank.training);
  all.stopped = all.stopped || rank.stopped;
  all.late_after = std::max(all.late_after, rank.late_after);
  if (all.trains_in.empty()) all.trains_in = rank.trains_in;
  if (all.unsaved.empty()) all.unsaved = rank.unsaved;
}

void ReportReader::read() {
  std::array<char, 65536> part{};
  while (pipe_) {
    const auto length = ::read(pipe_.get(), part.data(), part.size());
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) return;
    if (!is_broken_) bytes_.append(part.data(), static_cast<std::size_t>(length));
    parse();
    if (length == 0) pipe_ = FileDescriptor();
  }
}

void ReportReader::parse() {
  FrameHeader header{};
  std::size_t at = 0;
  while (bytes_.size() - at >= sizeof header) {
    std::memcpy(&header, bytes_.data() + at, sizeof header);
    if (header.kind > FrameKind::last || header.length > kMostText) {
      is_broken_ = true;
      return bytes_.clear();
    }
    if (bytes_.size() - at < sizeof header + header.length) break;
    on_frame(header, std::string_view(bytes_).substr(at + sizeof header, header.length));
    at += sizeof header + header.length;
  }
  bytes_.erase(0, at);
}

void ReportReader::on_frame(const FrameHeader& header, std::string_view text) {
  if (std::exchange(text_of_, header.process) != header.process) text_.clear();  // one that ended in the middle
  const auto whole = [&] { return std::exchange(text_, "").append(text); };
  switch (header.kind) {
    case FrameKind::text:
      text_ += text;
      break;
    case FrameKind::reached:
      report_.reached = true;
      break;
    case FrameKind::done:
      report_.result = whole();
      break;
    case FrameKind::failed:
    case FrameKind::failed_alike: {
      const auto both = whole();
      const auto end = both.find('\0');
      const bool follows = report_.failure && report_.failure->process == header.process;  // from its first error
      if (end == std::string::npos || follows) break;
      report_.failure = {static_cast<int>(header.value), both.substr(end + 1), both.substr(0, end),
                         header.kind == FrameKind::failed_alike, header.process};
      break;
    }
    case FrameKind::saved:
      report_.saved_step = header.value;
      break;
    case FrameKind::smaller_micro_batch:
      report_.smaller_micro_batch = header.value;
      break;
    case FrameKind::trains_in:
      report_.trains_in = whole();
      break;
    case FrameKind::takes_signals:
      report_.training = RankReport::Training::takes_signals;
      report_.stopped = false;
      report_.late_after = 0;
      break;
    case FrameKind::stopped:
      report_.stopped = true;
      break;
    case FrameKind::late:
      report_.late_after = header.value;
      break;
    case FrameKind::unsaved:
      report_.unsaved = whole();
      break;
    case FrameKind::trained:
      report_.training = RankReport::Training::over;
      break;
  }
}

}  // namespace trireme::ranks
