#include "apps/front/rank_output.h"

#include <fmt/format.h>

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

}  // namespace

void RankOutput::write(int rank, std::string_view text) {
  std::string out;
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
  std::fwrite(out.data(), 1, out.size(), to_);  // output_error() reports a failure
  std::fflush(to_);
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
