// Operation: one running collective or point-to-point call, as a small program.
//
// A program is a list of rounds. A round posts all its receives and sends; when they are complete it runs its local
// step (a reduction, a copy), and the next round begins. No step blocks, so any number of operations on any groups
// progress concurrently, and different orders of different groups on different ranks cannot deadlock.
//
// Matching: all messages of one collective have one tag, derived from its sequence number in the group; sends and
// receives have the caller's tag. A wire keeps the order of messages between two ranks under one tag, so both sides
// must process the messages of a pair in the same order: a round lists them in that order, and operations of one group
// and tag are ordered by a MessageQueue: an operation matches a peer's messages, or sends to it, only after all earlier
// operations are done with that peer. If a receive fails before its message has arrived, the message goes to the next
// receive.
// A receive is not posted ahead: the message is matched first, its size is compared, and then it is received. So ranks
// that disagree on a shape get an error with both sizes. A receive posted with too small a buffer would not be safe,
// because Open MPI's single-copy path writes a long message past its end. Matching first costs a fraction of a
// microsecond.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "core/comm/engine/wire.h"

namespace trireme::comm::engine {

class Engine;
struct MessageQueue;

struct Transfer {
  void* data;
  std::size_t bytes;
  int peer;  ///< group rank; kAnySource in a receive
};

struct Round {
  std::vector<Transfer> receives, sends;
  std::function<void()> then;  ///< may be empty
};

/// What the caller fills in before the engine starts the operation.
struct Program {
  const char* name;  ///< a string literal such as "all_reduce"
  std::uint64_t sequence = 0;
  int tag = 0;
  std::chrono::milliseconds timeout;  ///< from when it could have started
  flight::Entry entry{};
  std::vector<Round> rounds;
  /// The first round waits until this returns true (a CUDA event); empty: it starts at once.
  std::function<bool()> ready;
  /// Runs when all rounds are done, without the engine's lock, on the thread that completed the last one: copies
  /// results back to tensors that could not be used in place. May be empty.
  std::function<void()> finish;
  std::vector<std::shared_ptr<std::byte>> scratch;  ///< memory that rounds point into
  std::vector<at::Tensor> tensors;                  ///< likewise
  std::vector<at::Tensor> results;                  ///< the value of the future
  bool asynchronous = true;                         ///< false: the caller waits at once, so no thread needs to be woken
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
  /// Drives the engine until this operation is complete. @throws CommError; also when `timeout` is positive and passes
  /// (the operation then continues).
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire); }
  /// "all_reduce (sequence 812) of group dp, rank 1 of 4"
  [[nodiscard]] std::string text() const;

 private:
  friend class Engine;
  // Under the engine's lock:
  enum class Step { waiting, moved, finished };
  struct Arrival {  // a message that this round waits for
    std::byte* data;
    std::size_t bytes;
    int peer;
  };
  [[nodiscard]] bool waits_for_device() const { return program_.ready != nullptr; }
  Step advance();            // one poll of this operation
  Step go_on();              // the part of advance() that makes progress
  void check_ended() const;  // @throws CommError when a message that this round waits for can never come
  bool may_post(const Round& round) const;
  void note_start();
  void post(Round& round);  // starts the sends of a round and lists its arrivals
  bool match_arrivals();    // receives the messages that have arrived; returns whether there were any
  bool match(const Arrival& arrival);
  bool match_from(int peer, const Arrival& arrival);
  void hold_what_is_left();  // against younger operations of the queue
  bool collect_requests();   // returns whether any completed
  void fail(std::exception_ptr error);
  void add_request(Request request, int peer);
  [[nodiscard]] bool exchanging() const { return !arrivals_.empty() || open_requests_ > 0; }
  [[nodiscard]] bool has_requests() const { return open_requests_ > 0; }
  [[nodiscard]] std::string peer_text(int peer) const;
  [[nodiscard]] std::string pending_peers() const;
  // Without the lock, once:
  void complete();
  void settle(c10::ivalue::Future& future) const;

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<const Channel> channel_;
  Program program_;
  MessageQueue* queue_ = nullptr;  // set while this operation is active in the engine
  std::size_t round_ = 0;
  bool posted_ = false;
  std::vector<Arrival> arrivals_;  // not yet matched
  std::vector<Request> requests_;
  std::vector<int> request_peers_;
  std::size_t open_requests_ = 0;  // those of requests_ that are not complete
  bool started_ = false;           // its tensors are ready, and older operations of its queue let it proceed
  Clock::time_point deadline_ = Clock::time_point::max();  // until it has started
  int source_ = -1;
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_ of the base class
  std::atomic<bool> done_{false};
};

}  // namespace trireme::comm::engine
