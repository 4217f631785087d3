// Operation: one collective or point-to-point call under way on the Open MPI transport, as a small program.
//
// A program is a list of rounds. A round posts its receives and sends at once; when all of them are complete it runs
// its local step (a reduction, a copy) and the next round begins. No step ever blocks, so any number of operations on
// any groups advance side by side, and different orders of different groups on different ranks cannot lock each other.
//
// Matching: all messages of one collective carry one tag, made from its sequence number in the group; sends and
// receives carry the caller's. MPI keeps the order of messages between two ranks under one tag, so both sides must put
// the messages of a pair in the same order: a round lists them so, and operations of one group and tag take turns (see
// Lane): none looks for a peer's messages, or sends to it, before those that were started earlier are through with it.
// A receive that fails before its message has come leaves it to the next one.
// A receive is not posted ahead: the message is matched first (MPI_Improbe), its size compared, and then received.
// Ranks that disagree on a shape get an error with both sizes; a receive posted too small is no guard, as Open MPI's
// single-copy path writes a long message past its end. It costs a fraction of a microsecond.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace trireme::comm::mpi {

using Clock = std::chrono::steady_clock;
class Engine;
struct MessageQueue;

/// Messages of one communicator on this rank since it was made.
struct Traffic {
  std::atomic<std::int64_t> sent{0}, received{0};
};

/// The communicator of one group on this rank.
struct Channel {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  std::vector<int> ranks;  ///< world ranks, in group order
  std::string axis;
  int tag_half = 0;  ///< tags below are the callers' own, from here on those of collectives
  std::shared_ptr<Traffic> traffic = std::make_shared<Traffic>();
};

struct Transfer {
  void* data;
  std::size_t bytes;
  int peer;  ///< group rank; MPI_ANY_SOURCE in a receive
};

struct Round {
  std::vector<Transfer> receives, sends;
  std::function<void()> then;  ///< may be empty
};

/// What the calling code fills in before the engine starts it.
struct Program {
  const char* name;  ///< "all_reduce": string literals
  std::uint64_t sequence = 0;
  int tag = 0;
  std::chrono::milliseconds timeout;
  std::vector<Round> rounds;
  /// The first round waits until this says true (a CUDA event); empty: at once.
  std::function<bool()> ready;
  /// Runs when all rounds are done, outside the engine's lock, on whichever thread saw the end: copies back to tensors
  /// that could not be used in place. May be empty.
  std::function<void()> finish;
  std::vector<std::shared_ptr<std::byte>> scratch;  ///< what rounds point into
  std::vector<at::Tensor> tensors;                  ///< likewise
  std::vector<at::Tensor> results;                  ///< what the future yields
  bool asynchronous = true;                         ///< false: the caller waits at once, no thread need be woken
};

class Operation final : public c10d::Work {
 public:
  Operation(std::shared_ptr<Engine> engine, std::shared_ptr<const Channel> channel, c10d::OpType type, Program program);
  ~Operation() override;

  bool isCompleted() override { return done(); }
  bool isSuccess() const override { return done() && !error_; }
  std::exception_ptr exception() const override { return done() ? error_ : nullptr; }
  std::vector<at::Tensor> result() override { return program_.results; }
  int sourceRank() const override { return source_; }
  std::uint64_t getSequencenumber() const override { return program_.sequence; }
  void synchronize() override {}
  /// Drives the engine itself until this is complete. @throws CommError; with a timeout of its own, also when that
  /// passes (the operation stays under way).
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire); }
  /// "all_reduce (sequence 812) of group dp, rank 1 of 4"
  [[nodiscard]] std::string text() const;

 private:
  friend class Engine;
  // Under the engine's lock:
  enum class Step { waiting, moved, finished };
  struct Arrival {  // a message that this round expects
    std::byte* data;
    std::size_t bytes;
    int peer;
  };
  Step advance();  // one look at this operation
  Step go_on();    // ... what it could do in it
  bool may_post(const Round& round) const;
  void post(Round& round);  // starts the sends of a round and lists its arrivals
  bool match_arrivals();    // receives what is there; whether there was anything
  bool match(const Arrival& arrival);
  bool match_from(int peer, const Arrival& arrival);
  void hold_what_is_left();  // against younger operations of the lane
  bool collect_requests();   // whether any completed
  void fail(std::exception_ptr error);
  [[nodiscard]] bool has_requests() const;
  [[nodiscard]] std::string peer_text(int peer) const;
  [[nodiscard]] std::string pending_peers() const;
  // Outside of it, once:
  void complete();

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<const Channel> channel_;
  Program program_;
  MessageQueue* queue_ = nullptr;  // while the engine has this operation among its active ones
  std::size_t round_ = 0;
  bool posted_ = false;
  std::vector<Arrival> arrivals_;  // not matched yet
  std::vector<MPI_Request> requests_;
  std::vector<int> request_peers_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::size_t pending_ = 0;  // arrivals and requests of the round
  Clock::time_point deadline_;
  int source_ = -1;
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_ of the base
  std::atomic<bool> done_{false};
};

}  // namespace trireme::comm::mpi
