// The TCP connections between ranks of different hosts: one for each pair, made by the higher rank.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/file_descriptor.h"
#include "core/comm/native/segment.h"

namespace trireme::comm::native {

/// A socket that other ranks connect to, on any free port.
class Listener {
 public:
  /// @param beside_rank_0 whether this host is rank 0's, which others reach at MASTER_ADDR.
  /// @throws CommError.
  Listener(int backlog, bool beside_rank_0);
  /// "10.0.0.7 41234": TRIREME_ADDRESS if it is set, else this host's address on the way to MASTER_ADDR.
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] int socket() const { return socket_.get(); }

 private:
  FileDescriptor socket_;
  std::string address_;
};

struct RemoteRank {
  int rank;
  std::string address;  ///< Listener::address()
  std::string host;     ///< for errors
  Token token;          ///< its secret, by which it knows that a connection is a rank's
};

/// Connects to the lower ones of these ranks and accepts the connections of the higher ones.
/// @throws CommError, which names the missing rank and its host.
std::vector<std::pair<int, FileDescriptor>> connect_remote_ranks(const Listener& listener, int own_rank,
                                                                 const Token& own_token,
                                                                 const std::vector<RemoteRank>& ranks,
                                                                 std::chrono::milliseconds timeout);

}  // namespace trireme::comm::native
