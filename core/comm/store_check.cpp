#include "core/comm/store_check.h"

#include <fmt/format.h>

#include <cstring>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "core/base/error.h"

namespace trireme::comm {

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
