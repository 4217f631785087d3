#include "apps/front/mpi_noise.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace trireme::apps {
namespace {

constexpr std::size_t kDashes = 74;
constexpr std::size_t kLongestHelp = 8192;  // bytes; a longer block is none of Open MPI's
constexpr std::string_view kOurs = "trireme: ";
/// What mpirun, under any of its names, says to a second signal. An empty line follows.
constexpr std::string_view kAborting[] = {
    "mpirun: abort is already in progress...hit ctrl-c", "mpiexec: abort is already in progress...hit ctrl-c",
    "orterun: abort is already in progress...hit ctrl-c", "Abort is in progress...hit ctrl-c again within"};

/// Whether Open MPI begins a message with this, after "[HOST:PID] ".
bool is_message(std::string_view text) {
  for (const std::string_view begin : {"***", "[[", "[ ", "[0", "Read -1", "Signal", "Associated errno", "Failing at",
                                       "PMIX ERROR", "OPAL ERROR", "Error: Unable to get", "mca_", "mca: "})
    if (text.starts_with(begin)) return true;
  return text.find("more process") != std::string_view::npos;
}

bool may_become(std::string_view line, std::string_view wanted) {
  const auto same = std::min(line.size(), wanted.size());
  return line.substr(0, same) == wanted.substr(0, same);
}

bool may_become_aborting(std::string_view line) {
  return std::any_of(std::begin(kAborting), std::end(kAborting),
                     [&](std::string_view text) { return may_become(line, text); });
}

bool is_aborting(std::string_view line) {
  return std::any_of(std::begin(kAborting), std::end(kAborting),
                     [&](std::string_view text) { return line.starts_with(text); });
}

}  // namespace

MpiNoise::MpiNoise(Of stream) : stream_(stream) {
  std::array<char, 256> host{};
  (void)gethostname(host.data(), host.size() - 1);
  opening_ = "[" + std::string(host.data()) + ":";
}

MpiNoise::Kind MpiNoise::kind_of(std::string_view line, bool complete) const {
  if (line.starts_with(kOurs)) return Kind::ours;
  if (complete && is_aborting(line)) return Kind::aborting;
  if (complete && line.empty() && after_aborting_) return Kind::noise;
  if (!complete && may_become_aborting(line)) return Kind::unknown;
  if (stream_ == Of::output) return Kind::other;
  const bool dashes = line.size() <= kDashes && line.find_first_not_of('-') == std::string_view::npos;
  if (complete && dashes && line.size() == kDashes) return Kind::dashes;
  if (!complete && (dashes || may_become(line, kOurs))) return Kind::unknown;
  if (!may_become(line, opening_)) return Kind::other;
  if (!complete) return Kind::unknown;
  if (line.size() <= opening_.size()) return Kind::other;
  const auto rest = line.substr(opening_.size());
  const auto end = rest.find_first_not_of("0123456789");
  const bool has_process = end != std::string_view::npos && end > 0 && rest.substr(end).starts_with("] ");
  return has_process && is_message(rest.substr(end + 2)) ? Kind::noise : Kind::other;
}

std::string MpiNoise::decide(Kind kind) {
  auto line = std::exchange(partial_line_, "");
  after_aborting_ = kind == Kind::aborting;
  if (kind == Kind::noise || kind == Kind::aborting) return "";
  if (kind == Kind::ours) return line;
  if (kind == Kind::dashes) {
    in_block_ = !in_block_;
    block_ = in_block_ ? line : "";
    return "";
  }
  if (!in_block_) return line;
  block_ += line;
  if (block_.size() <= kLongestHelp) return "";
  in_block_ = false;
  return std::exchange(block_, "");
}

std::string MpiNoise::add(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const bool complete = end != std::string_view::npos;
    const auto part = text.substr(0, complete ? end + 1 : text.size());
    text.remove_prefix(part.size());
    if (passes_) {
      out += part;
      passes_ = !complete;
      continue;
    }
    partial_line_ += part;
    const auto kind =
        kind_of(std::string_view(partial_line_).substr(0, partial_line_.size() - (complete ? 1 : 0)), complete);
    if (complete) {
      out += decide(kind);
    } else if (kind == Kind::ours || (kind == Kind::other && !in_block_)) {
      out += std::exchange(partial_line_, "");
      passes_ = true;
    }
  }
  return out;
}

std::string MpiNoise::finish() {
  auto out = std::exchange(block_, "");
  in_block_ = false;
  return out + (partial_line_.empty() ? "" : decide(kind_of(partial_line_, /*complete=*/true)));
}

}  // namespace trireme::apps
