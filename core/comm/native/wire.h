// The native wire: shared memory between the ranks of one host, and no library in between.
//
// Messages of up to kEager bytes travel with their frame. Longer ones are announced: see link.h. A rank that waits
// sleeps on its doorbell. A peer has ended when its process has (asked from the kernel), or it said goodbye, and
// everything that it wrote before has been read.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/comm/engine/scratch.h"
#include "core/comm/engine/wire.h"
#include "core/comm/native/link.h"
#include "core/comm/native/processes.h"

namespace trireme::comm::native {

class NativeWire final : public engine::Wire, private FrameSink {
 public:
  explicit NativeWire(Processes processes);

  [[nodiscard]] const char* name() const override { return "native"; }
  [[nodiscard]] std::size_t longest_message() const override { return std::size_t{1} << 40; }
  std::uint64_t open(const engine::Channel&, const std::vector<int>&, const std::string&,
                     std::uint64_t number) override {
    return number;
  }
  bool progress() override;
  engine::Request send(const engine::Channel& channel, int tag, int peer, const std::byte* data,
                       std::size_t bytes) override;
  std::optional<engine::Matched> match(const engine::Channel& channel, int tag, int peer) override;
  engine::Request receive(const engine::Channel& channel, const engine::Matched& matched, std::byte* data) override;
  std::size_t test(std::span<engine::Request> requests, std::span<const int> peers) override;
  [[nodiscard]] std::optional<int> ended(const engine::Channel& channel, int tag, int peer) const override;
  void check_peers() override;

  [[nodiscard]] std::optional<std::chrono::nanoseconds> spin_time() const override { return spin_; }
  std::uint32_t prepare_sleep() override { return bell_.prepare(); }
  void sleep(std::uint32_t ticket, engine::Clock::duration at_most) override {
    bell_.wait(ticket, at_most);
    bell_.cancel();
  }
  void cancel_sleep() override { bell_.cancel(); }
  void wake() override { bell_.ring(); }

  /// Tells all others that this rank will send nothing more. With `wait`, returns when all others have said so too, or
  /// have ended, or the time has passed, so that what was written reaches them; without, when it has been written.
  /// Returns whether all have: then none of them needs this rank's memory any more.
  bool say_goodbye(bool wait, std::chrono::milliseconds at_most);

 private:
  /// A message that has arrived or was announced, and is not matched.
  struct Incoming {
    std::uint64_t context;
    int tag;
    std::uint64_t order;  // among the messages of all ranks
    std::size_t bytes;
    std::shared_ptr<std::byte> data;  // null if only announced, or offered
    std::uint64_t sender, address;    // if only announced
    bool offered = false;             // by the peer's link
  };
  struct Peer {
    Peer(int rank, NativeWire& wire, Process its)
        : link(rank, static_cast<FrameSink&>(wire)), process(std::move(its)) {}
    Link link;
    Process process;
    // The eager message at which the link stopped: it goes where a receive that matches it wants it, or into memory of
    // the wire's own if none has come when the link is read again.
    bool offered = false;
    std::uint64_t offered_order = 0;
    engine::Request receives_offered = engine::kNoRequest;  // the transfer that matched it
    std::shared_ptr<std::byte> arriving;                    // the wire's own memory for it
    std::deque<Incoming> incoming;                          // oldest first
    int ended = 0;  // the order of its end: it sends no more messages; 0: it has not ended
    bool said_goodbye = false;
    bool gone = false;  // its process has ended: nothing reaches it either
  };
  /// A message in progress. Requests are the keys of transfers_.
  struct Transfer {
    Peer* peer;
    std::byte* data;
    std::size_t bytes;
    std::size_t moved = 0;
    std::uint64_t sender = 0, address = 0;  // of a message that this rank copies from the other's memory
    bool done = false;
    bool lost = false;  // its sender's memory is gone: it never completes, and its test reports the sender's end
  };

  // FrameSink:
  std::byte* place(Link& link, const Frame& frame) override;
  void arrived(Link& link, const Frame& frame) override;
  void written(std::uint64_t transfer) override { transfers_.at(transfer).done = true; }

  Peer& peer_at(int world_rank) { return *peers_[static_cast<std::size_t>(world_rank)]; }
  /// The order of the oldest message under this tag; none if there is no message.
  static std::optional<std::uint64_t> oldest(const Peer& peer, std::uint64_t context, int tag);
  static Incoming take_oldest(Peer& peer, std::uint64_t context, int tag);
  /// Ends the peers that have said goodbye, after those whose ends may be the reason.
  void end_politely();
  void end(Peer& peer);
  engine::Request receive_offered(Peer& peer, std::byte* data);
  /// Copies the next piece of a message from the other rank's memory; returns whether no more is to be copied: the
  /// transfer is done or lost, or the memory cannot be read, and the bytes must be asked for.
  bool copy_piece(Transfer& transfer);
  /// Asks for the bytes of an announced message.
  static void ask_for(const Transfer& transfer, engine::Request id);

  int rank_;
  Segment own_;
  Doorbell bell_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by world rank; its own has no open link
  std::vector<Peer*> open_;
  std::shared_ptr<engine::Scratch> scratch_ = std::make_shared<engine::Scratch>();
  std::unordered_map<engine::Request, Transfer> transfers_;
  std::vector<engine::Request> copies_;  // transfers that this rank copies
  std::uint64_t last_transfer_ = 0, last_order_ = 0;
  Incoming matched_{};         // by the last match()
  int ended_ = 0;              // number of peers
  int goodbyes_ = 0;           // peers that said it and have not been ended
  std::vector<Peer*> blamed_;  // by those goodbyes
  int cause_ = -1;             // the first rank that ended without a goodbye: why the others end
  std::chrono::nanoseconds spin_;
};

}  // namespace trireme::comm::native
