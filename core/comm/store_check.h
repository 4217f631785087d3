// StoreCheck: compares the operations of a group through a key-value store, for groups whose own transport is a
// device's. Private to core/comm.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/fingerprint.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace trireme::comm {

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
