#include "apps/launcher/rank_output.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <climits>
#include <utility>

namespace trireme::apps {
namespace {

constexpr std::size_t kLongestLine = 65536;
constexpr std::chrono::milliseconds kMoment{300};

/// The length of the first line with its end, or 0 without one. A carriage return ends a line, too: a progress bar.
std::size_t first_line(std::string_view text) {
  for (std::size_t at = text.find_first_of("\r\n"); at != std::string_view::npos;
       at = text.find_first_of("\r\n", at + 1)) {
    if (text[at] == '\n') return at + 1;
    if (at + 1 < text.size() && text[at + 1] != '\n') return at + 1;
  }
  return 0;
}

/// Whether a write of at most PIPE_BUF bytes does not wait. An error is found by that write.
bool is_writable(std::FILE* file) {
  pollfd stream{fileno(file), POLLOUT, 0};
  return poll(&stream, 1, 0) != 0;
}

}  // namespace

RankOutput::~RankOutput() { loop_.forget(fileno(to_)); }

void RankOutput::write(int rank, std::string_view text) {
  auto& out = unwritten_;
  if (unfinished_ >= 0 && unfinished_ != rank) out += '\n';
  bool at_start = unfinished_ != rank;
  while (!text.empty()) {
    const auto length = first_line(text);
    const auto line = text.substr(0, length == 0 ? text.size() : length);
    if (at_start && tag_) out += fmt::format("[{}] ", rank);
    out += line;
    text.remove_prefix(line.size());
    at_start = length != 0;
  }
  unfinished_ = at_start ? -1 : rank;
  flush();
}

void RankOutput::say(std::string_view line) {
  if (unfinished_ >= 0) unwritten_ += '\n';
  unfinished_ = -1;
  unwritten_ += line;
  flush();
}

void RankOutput::flush() {
  std::size_t done = 0;
  while (done < unwritten_.size() && is_writable(to_)) {
    const auto length = std::min<std::size_t>(unwritten_.size() - done, PIPE_BUF);
    std::fwrite(unwritten_.data() + done, 1, length, to_);  // output_error() reports a failure
    std::fflush(to_);
    done += length;
  }
  unwritten_.erase(0, done);
  if (unwritten_.empty())
    loop_.forget(fileno(to_));
  else
    loop_.watch_writable(fileno(to_), [this] { flush(); });
}

void RankOutput::add(int rank, std::string_view text) {
  auto& waiting = waiting_[rank];
  if (text.empty()) {
    if (!waiting.text.empty()) write(rank, std::exchange(waiting.text, ""));
    return;
  }
  if (waiting.text.empty()) waiting.since = Clock::now();
  waiting.text += text;
  std::size_t complete = 0;
  while (const auto length = first_line(std::string_view(waiting.text).substr(complete))) complete += length;
  if (waiting.text.size() - complete > kLongestLine) complete = waiting.text.size();
  if (complete == 0) return;
  write(rank, std::string_view(waiting.text).substr(0, complete));
  waiting.text.erase(0, complete);
  waiting.since = Clock::now();
}

void RankOutput::write_waiting() {
  const auto now = Clock::now();
  for (auto& [rank, waiting] : waiting_)
    if (!waiting.text.empty() && now - waiting.since >= kMoment) write(rank, std::exchange(waiting.text, ""));
}

}  // namespace trireme::apps
