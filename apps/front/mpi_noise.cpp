#include "apps/front/mpi_noise.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace trireme::apps {

constexpr std::size_t kDashes = 60;  // Open MPI prints 74

MpiNoise::MpiNoise() {
  std::array<char, 256> host{};
  (void)gethostname(host.data(), host.size() - 1);
  opening_ = "[" + std::string(host.data()) + ":";
}

MpiNoise::Kind MpiNoise::kind_of(std::string_view line, bool complete) const {
  const auto dashes = line.find_first_not_of('-');
  if (dashes == std::string_view::npos && line.size() >= kDashes && complete) return Kind::dashes;
  if (dashes == std::string_view::npos && !complete) return Kind::unknown;
  const auto same = std::min(line.size(), opening_.size());
  if (line.substr(0, same) != opening_.substr(0, same)) return Kind::other;
  if (same < opening_.size()) return complete ? Kind::other : Kind::unknown;
  const auto rest = line.substr(same);
  const auto end = rest.find_first_not_of("0123456789");
  if (end == std::string_view::npos) return complete ? Kind::other : Kind::unknown;
  return end > 0 && rest[end] == ']' ? Kind::noise : Kind::other;
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
    held_ += part;
    const auto line = std::string_view(held_).substr(0, held_.size() - (complete ? 1 : 0));
    const auto kind = kind_of(line, complete);
    if (complete && kind == Kind::dashes) {
      in_block_ = !in_block_;
      held_.clear();
    } else if (!in_block_ && kind == Kind::other) {
      out += held_;
      held_.clear();
      passes_ = !complete;
    } else if (complete) {
      held_.clear();  // noise, or a line of a block
    }
  }
  return out;
}

std::string MpiNoise::finish() {
  std::string out;
  if (!in_block_ && kind_of(held_, /*complete=*/true) == Kind::other) out = held_;
  held_.clear();
  return out;
}

}  // namespace trireme::apps
