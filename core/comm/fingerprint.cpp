#include "core/comm/fingerprint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "core/base/error.h"

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

Fingerprint::Fingerprint(const flight::Call& call, bool may_be_uneven)
    : root(call.root),
      dimensions(static_cast<std::int32_t>(call.sizes.size())),
      elements(call.elements),
      sequence(call.sequence),
      uneven(may_be_uneven ? 1 : 0) {
  put_text(op, call.op);
  put_text(dtype, call.dtype);
  std::copy_n(call.sizes.begin(), std::min(sizes.size(), call.sizes.size()), sizes.begin());
}

void Fingerprint::set_reduction(std::string_view name) { put_text(reduction, name); }

std::string Fingerprint::text() const {
  std::string out(view(op));
  if (reduction[0] != '\0') out += fmt::format(" ({})", view(reduction));
  if (dtype[0] != '\0') {
    const auto all = static_cast<std::size_t>(std::max(dimensions, 0)), shown = std::min(all, sizes.size());
    out += fmt::format(" of [{}{}] {}", fmt::join(std::span(sizes).first(shown), ", "), all > shown ? ", ..." : "",
                       view(dtype));
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

StoreCheck::StoreCheck(c10::intrusive_ptr<c10d::Store> store, std::string axis, int rank, std::vector<int> ranks)
    : store_(std::move(store)), axis_(std::move(axis)), rank_(rank), ranks_(std::move(ranks)) {}

void StoreCheck::compare(const Fingerprint& own) {
  const auto key = [this](std::uint64_t number, std::size_t rank) { return fmt::format("check/{}/{}", number, rank); };
  const auto what = fmt::format("{} (sequence {}) of group {}, rank {} of {}", own.op.data(), own.sequence, axis_,
                                rank_, ranks_.size());
  const auto me = static_cast<std::size_t>(rank_);
  ++number_;
  std::vector<Fingerprint> all(ranks_.size());
  std::size_t at = 0;
  try {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&own);
    store_->set(key(number_, me), std::vector<std::uint8_t>(bytes, bytes + sizeof own));
    for (; at < all.size(); ++at) {
      const auto said = store_->get(key(number_, at));
      if (said.size() != sizeof own) throw CommError(fmt::format("{}: rank {} is of another version", what, at));
      std::memcpy(&all[at], said.data(), sizeof own);
    }
    // All ranks have come to this operation, so they have read the one before the last.
    if (number_ > 2) store_->deleteKey(key(number_ - 2, me));
  } catch (const c10::Error& error) {
    throw CommError(fmt::format("{}: rank {} (world rank {}) did not come to this operation ({})", what, at,
                                at < ranks_.size() ? ranks_[at] : -1, error.what_without_backtrace()));
  }
  if (const auto text = difference(what, rank_, all, ranks_); !text.empty()) throw CommError(text);
}

}  // namespace trireme::comm
