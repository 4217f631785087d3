// Call: builds the program of one collective from exchanges between the ranks, and starts it. Private to the backend.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/comm/engine/backend.h"
#include "core/comm/fingerprint.h"

namespace trireme::comm::engine {

/// Raw memory of a CPU tensor or of a part of it.
struct Piece {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// Up to this many ranks, a direct exchange has fewer rounds and hardly more messages than any tree.
constexpr int kFewRanks = 4;

inline Piece piece_of(const at::Tensor& host) { return {static_cast<std::byte*>(host.data_ptr()), host.nbytes()}; }

struct Backend::Call {
  Call(Backend& backend, c10d::OpType type, const char* name, std::chrono::milliseconds timeout, bool asynchronous);

  [[noreturn]] void refuse(const std::string& why) const;
  void check_one(const Tensors& tensors, const char* what) const;
  /// Checks for one tensor per rank. @throws CommError.
  void check_list(const Tensors& tensors, const char* what) const;
  /// Checks that `whole` has one part for each rank. @throws CommError.
  void check_parts(const char* whole_name, const at::Tensor& whole, const char* part_name,
                   const at::Tensor& part) const;
  void check_root(std::int64_t of);
  void check_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op);

  // CPU tensors for the call's tensors, kept until the operation ends; outputs are also the call's results.
  Piece input(const at::Tensor& tensor) { return keep(tensor, true, false); }
  Piece output(const at::Tensor& tensor) { return keep(tensor, false, true); }
  Piece in_place(const at::Tensor& tensor) { return keep(tensor, true, true); }
  std::vector<Piece> inputs(const Tensors& tensors) { return keep_all(tensors, true, false); }
  std::vector<Piece> outputs(const Tensors& tensors) { return keep_all(tensors, false, true); }

  /// Splits a tensor's memory into one part per rank; sizes differ by at most one element.
  [[nodiscard]] std::vector<Piece> cut(const Piece& whole, std::size_t element) const {
    return cut(whole, element, static_cast<std::size_t>(size));
  }
  /// The same for `owners` of the ranks, evenly spaced; the parts of the others are empty.
  [[nodiscard]] std::vector<Piece> cut(const Piece& whole, std::size_t element, std::size_t owners) const;

  // Exchanges. Each appends rounds to the program.
  void exchange(const std::vector<Piece>& to_each, const std::vector<Piece>& from_each);
  /// Between each rank's piece `mine` and the root's pieces `of_ranks`, which it receives, or sends.
  void exchange_with_root(int root, const Piece& mine, const std::vector<Piece>& of_ranks, bool gathers);
  /// This rank's own part of an exchange, which is copied when the round is complete.
  void copy_own(Round& round, const Piece& from, const Piece& to) const;
  void check_own(const Piece& from, const Piece& to) const;
  void gather_all(const Piece& mine, const std::vector<Piece>& from_each);
  /// Broadcasts the root's piece, along a binomial tree in a large group.
  void broadcast(int root, const Piece& piece);
  /// to_each[r] is this rank's contribution to rank r's part; `mine` receives the reduction of this rank's part. With
  /// `back`, every reduced part is sent back to all ranks and replaces the contributions (an all-reduce).
  void reduce_parts(const std::vector<Piece>& to_each, const Piece& mine, c10::ScalarType type, c10d::ReduceOp op,
                    bool back);
  void all_reduce(const Piece& tensor, c10::ScalarType type, const c10d::ReduceOp& op);
  void reduce_to(int root, const Piece& tensor, c10::ScalarType type, const c10d::ReduceOp& op);

  WorkPtr start();

  Backend& backend;
  c10d::OpType type;
  int rank, size;
  int named_root = -1, named_peer = -1;  ///< ranks of the group; -1: none, or any
  std::optional<c10d::ReduceOp::RedOpType> reduction{};
  Program program;
  Staging staging;

 private:
  [[nodiscard]] bool is_message() const;  ///< a send or recv
  [[nodiscard]] flight::Call description() const;
  /// Adds the comparison with the other ranks' calls.
  void compare_first();

  at::Tensor first_;   ///< the first tensor, for the description
  std::string dtype_;  ///< its dtype
  std::int64_t elements_ = 0;
  Piece keep(const at::Tensor& tensor, bool reads, bool writes);
  std::vector<Piece> keep_all(const Tensors& tensors, bool reads, bool writes);
  /// Calls body for each peer, starting with the next rank, so that the load is spread.
  template <class Body>
  void each_peer(Body&& body) const {
    for (int i = 1; i < size; ++i) body((rank + i) % size);
  }
  /// Receives `bytes` from every peer into scratch. Returns the sources of a reduction in rank order, with `own` for
  /// this rank.
  std::vector<const void*> receive_all(Round& round, std::byte* scratch, std::size_t slot, const void* own,
                                       std::size_t bytes);
  std::byte* scratch(std::size_t bytes);
  /// Whether the group is so large and the messages so small that the number of messages dominates the cost.
  [[nodiscard]] bool by_doubling(std::size_t bytes_of_all) const;
  /// Gathers every rank's piece on every rank, with log2(size) messages per rank. Returns the location of each rank's
  /// piece, valid once the last of these rounds is complete. bytes[r]: the size of rank r's piece.
  std::vector<const std::byte*> gather_by_doubling(const Piece& mine, const std::vector<std::size_t>& bytes);
  /// An all-reduce with as many messages and fewer bytes, for reductions whose bits do not depend on the order.
  void reduce_by_doubling(const Piece& tensor, c10::ScalarType type, c10d::ReduceOp::RedOpType op);
};

}  // namespace trireme::comm::engine
