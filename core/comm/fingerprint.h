// Fingerprint: what a rank is about to do in a group, compared between the ranks before data is exchanged
// (WorldOptions::check), by messages or through a store (StoreCheck). It has a fixed size and travels as it is. Private
// to core/comm.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/comm/flight/recorder.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace trireme::comm {

struct Fingerprint {
  std::array<char, 22> op{};
  std::array<char, 12> reduction{};  ///< "" if the operation reduces nothing
  std::array<char, 16> dtype{};
  std::int32_t root = -1;
  std::int32_t dimensions = 0;
  std::array<std::int64_t, 6> sizes{};  ///< of the first tensor
  std::int64_t elements = 0;            ///< of all tensors
  std::uint64_t sequence = 0;
  std::uint32_t uneven = 0;  ///< shapes may differ between the ranks: those of a gather

  Fingerprint() = default;
  explicit Fingerprint(const flight::Call& call, bool may_be_uneven = false);
  void set_reduction(std::string_view name);
  /// "all_reduce (sum) of [768] float32"
  [[nodiscard]] std::string text() const;
  /// Whether two ranks do the same. `other`: as it has arrived.
  [[nodiscard]] bool matches(const Fingerprint& other) const;
  /// Whether a message with this fingerprint is what a receive with that one expects.
  [[nodiscard]] bool fits_receive(const Fingerprint& receive) const;
};
static_assert(std::is_trivially_copyable_v<Fingerprint>);

/// The error's text when ranks of a group do different things: which rank does what. `what`: this rank's operation,
/// such as "all_reduce (sequence 12) of group dp, rank 0 of 4". "" when all match. `ranks`: world ranks in group order.
std::string difference(const std::string& what, int rank, std::span<const Fingerprint> all, std::span<const int> ranks);

/// Compares the operations of a group through a key-value store, for groups whose own transport is a device's.
class StoreCheck {
 public:
  /// `store`: with keys of the group's own. `ranks`: world ranks in group order.
  StoreCheck(c10::intrusive_ptr<c10d::Store> store, std::string axis, int rank, std::vector<int> ranks);
  /// Waits for the other ranks' fingerprints of this operation, as long as the store's timeout. One key for each rank
  /// and operation, of which a rank removes its own when all are two operations further.
  /// @throws CommError on every rank when the operations differ, or a rank does not come
  void compare(const Fingerprint& own);

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string axis_;
  int rank_;
  std::vector<int> ranks_;
  std::uint64_t number_ = 0;
};

}  // namespace trireme::comm
