#include "core/comm/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace trireme::comm {
namespace {

template <std::size_t N>
void put_text(std::array<char, N>& to, std::string_view text) {
  to.fill('\0');
  std::memcpy(to.data(), text.data(), std::min(text.size(), N - 1));
}

template <std::size_t N>
std::string_view view(const std::array<char, N>& text) {
  return {text.data(), strnlen(text.data(), N)};
}

}  // namespace

void Fingerprint::set_op(std::string_view name) { put_text(op, name); }
void Fingerprint::set_reduction(std::string_view name) { put_text(reduction, name); }
void Fingerprint::set_dtype(std::string_view name) { put_text(dtype, name); }

void Fingerprint::set_sizes(std::span<const std::int64_t> of) {
  dimensions = static_cast<std::int32_t>(of.size());
  for (std::size_t i = 0; i < sizes.size() && i < of.size(); ++i) sizes[i] = of[i];
}

std::string Fingerprint::text() const {
  std::string out(view(op));
  if (reduction[0] != '\0') out += fmt::format(" ({})", view(reduction));
  if (dtype[0] != '\0') {
    out += " of [";
    const auto shown = std::min<std::size_t>(static_cast<std::size_t>(std::max(dimensions, 0)), sizes.size());
    for (std::size_t i = 0; i < shown; ++i) out += fmt::format("{}{}", i == 0 ? "" : ", ", sizes[i]);
    out += fmt::format("{}] {}", static_cast<std::size_t>(dimensions) > shown ? ", ..." : "", view(dtype));
  }
  if (root >= 0) out += fmt::format(", root {}", root);
  return out;
}

bool Fingerprint::matches(const Fingerprint& other) const {
  if (view(op) != view(other.op) || view(reduction) != view(other.reduction) || view(dtype) != view(other.dtype) ||
      root != other.root || sequence != other.sequence)
    return false;
  return uneven != 0 || (dimensions == other.dimensions && sizes == other.sizes && elements == other.elements);
}

bool Fingerprint::fits_receive(const Fingerprint& receive) const {
  return view(op) == "send" && view(dtype) == view(receive.dtype) && dimensions == receive.dimensions &&
         sizes == receive.sizes;
}

std::string difference(const std::string& what, int rank, std::span<const Fingerprint> all,
                       std::span<const int> ranks) {
  const auto& own = all[static_cast<std::size_t>(rank)];
  std::string others;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!own.matches(all[i]))
      others +=
          fmt::format("{}rank {} (world rank {}) calls {}", others.empty() ? "" : ", ", i, ranks[i], all[i].text());
  if (others.empty()) return "";
  return fmt::format(
      "{}: the ranks do not do the same: this rank calls {}, but {}; all ranks of a group must make the "
      "same calls in the same order, with the same shapes and dtypes",
      what, own.text(), others);
}

}  // namespace trireme::comm
