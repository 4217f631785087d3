// The native wire between two ranks that are threads of this process: every way in which a message can travel,
// matching, and the meeting in a store.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "core/base/error.h"
#include "core/base/version.h"
#include "core/comm/meeting.h"
#include "core/comm/native/wire.h"

namespace trireme::comm::native {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::chrono::seconds kPatience{20};

LaunchInfo two_ranks(int rank) { return {Launcher::spawn, rank, 2, rank, 2}; }

engine::Channel world_of(int rank) {
  engine::Channel channel;
  channel.rank = rank;
  channel.size = 2;
  channel.ranks = {0, 1};
  return channel;
}

/// The wires of two ranks. `reads_memory`: false as in containers that forbid process_vm_readv.
struct Pair {
  explicit Pair(bool reads_memory) {
    c10d::HashStore store;
    Processes made[2];
    std::thread other([&] { made[1] = meet(two_ranks(1), store); });
    made[0] = meet(two_ranks(0), store);
    other.join();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      made[rank].others[1 - rank].reads_memory &= reads_memory;
      wires[rank] = std::make_unique<NativeWire>(std::move(made[rank]));
    }
  }
  std::unique_ptr<NativeWire> wires[2];
  engine::Channel channels[2]{world_of(0), world_of(1)};
};

Bytes message_of(std::size_t bytes, int salt) {
  Bytes message(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    message[i] = static_cast<std::byte>(i * 31 + i / 251 + static_cast<std::size_t>(salt));
  return message;
}

/// Moves both wires until the condition holds.
template <class Condition>
bool eventually(Pair& pair, Condition&& condition) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    for (auto& wire : pair.wires) wire->progress();
    if (std::chrono::steady_clock::now() > until) return false;
  }
  return true;
}

bool complete(NativeWire& wire, engine::Request& request, int peer) {
  return request == engine::kNoRequest || (wire.test({&request, 1}, {&peer, 1}) == 1 && request == engine::kNoRequest);
}

TEST(NativeWire, delivers_messages_of_every_size) {
  for (const bool reads_memory : {true, false}) {
    Pair pair(reads_memory);
    for (const std::size_t bytes :
         {0ul, 1ul, 47ul, 4096ul, 65536ul, 65537ul, kRingBytes - 1, 3 * kRingBytes + 5, 5ul << 20}) {
      SCOPED_TRACE(std::to_string(bytes) + (reads_memory ? " bytes" : " bytes through the ring"));
      const auto sent = message_of(bytes, 3);
      Bytes received(bytes);
      auto sending = pair.wires[0]->send(pair.channels[0], 5, 1, sent.data(), bytes);
      std::optional<engine::Matched> found;
      ASSERT_TRUE(eventually(pair, [&] { return (found = pair.wires[1]->match(pair.channels[1], 5, 0)).has_value(); }));
      EXPECT_EQ(found->bytes, bytes);
      auto receiving = pair.wires[1]->receive(pair.channels[1], *found, received.data());
      ASSERT_TRUE(eventually(
          pair, [&] { return complete(*pair.wires[0], sending, 1) && complete(*pair.wires[1], receiving, 0); }));
      EXPECT_EQ(received, sent);
    }
  }
}

TEST(NativeWire, matches_by_channel_and_tag_in_order) {
  Pair pair(true);
  auto& [from, to] = pair.wires;
  auto other = pair.channels[0];
  other.context = 7;
  struct Sent {
    const engine::Channel* channel;
    int tag, salt;
    std::size_t bytes;
  };
  const std::vector<Sent> all{{&pair.channels[0], 1, 10, 8},
                              {&pair.channels[0], 2, 11, 8},
                              {&other, 1, 12, 8},
                              {&pair.channels[0], 1, 13, 100'000},
                              {&pair.channels[0], 1, 14, 8}};
  std::vector<Bytes> texts;
  for (const auto& one : all) texts.push_back(message_of(one.bytes, one.salt));
  std::vector<engine::Request> requests;
  for (std::size_t i = 0; i < all.size(); ++i)
    requests.push_back(from->send(*all[i].channel, all[i].tag, 1, texts[i].data(), all[i].bytes));
  // In this order they are asked for: another channel first, then any source under tag 1, then tag 2.
  for (const std::size_t expected : {2, 0, 3, 4, 1}) {
    auto channel = pair.channels[1];
    channel.context = all[expected].channel->context;
    std::optional<engine::Matched> found;
    const int peer = expected == 3 ? engine::kAnySource : 0;
    ASSERT_TRUE(eventually(pair, [&] { return (found = to->match(channel, all[expected].tag, peer)).has_value(); }));
    EXPECT_EQ(found->source, 0);
    ASSERT_EQ(found->bytes, all[expected].bytes);
    Bytes received(found->bytes);
    auto receiving = to->receive(channel, *found, received.data());
    ASSERT_TRUE(eventually(pair, [&] { return complete(*to, receiving, 0); }));
    EXPECT_EQ(received, texts[expected]) << expected;
  }
  EXPECT_TRUE(eventually(pair, [&] {
    return std::all_of(requests.begin(), requests.end(), [&](auto& request) { return complete(*from, request, 1); });
  }));
}

/// Whether a thread of this process sleeps.
bool is_asleep(pid_t thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/stat", thread));  // "PID (name) STATE ..."
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.find(") S ") != std::string::npos;
}

TEST(NativeWire, wakes_a_sleeping_rank) {
  Pair pair(true);
  const Bytes message(64);
  std::thread sender([&, sleeper = gettid()] {
    while (!is_asleep(sleeper)) std::this_thread::yield();
    (void)pair.wires[0]->send(pair.channels[0], 1, 1, message.data(), message.size());
  });
  auto& wire = *pair.wires[1];
  const auto ticket = wire.prepare_sleep();
  wire.progress();
  wire.sleep(ticket, std::chrono::hours(1));
  wire.progress();
  EXPECT_TRUE(wire.match(pair.channels[1], 1, 0).has_value());
  sender.join();
}

TEST(NativeWire, refuses_ranks_that_it_cannot_work_with) {
  struct Case {
    std::vector<std::string> says;  // rank 1, in the agreements
    std::vector<std::string> words;
    std::string answer;  // what it hears in the last one
  };
  const std::vector<Case> cases{
      {{"9.9.9\nanything"}, {"rank 1 runs Trireme 9.9.9", "rank 0 runs " TRIREME_VERSION}, TRIREME_VERSION},
      {{"failed: cannot create shared memory"}, {"rank 1: cannot create shared memory"}, "rank 1: cannot create"},
      {{TRIREME_VERSION "\n0 0 0 0 0", ""},  // a process of another container: no number of it means anything here
       {"rank 0: cannot map the memory of rank 1", "start them in one container, or by mpirun"},
       "rank 0: cannot map"},
  };
  for (const auto& [says, words, expected] : cases) {
    c10d::HashStore store;
    store.setTimeout(kPatience);
    std::string answer;
    std::thread other([&] {
      const char* key = "cards/";
      for (const auto& text : says) {
        answer = decide_by_store(store, 1, 2, key, text, [](const auto&) { return ""; });
        key = "mapped/";
      }
    });
    try {
      (void)meet(two_ranks(0), store);
      ADD_FAILURE() << "met";
    } catch (const CommError& error) {
      for (const auto& word : words) EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
    other.join();
    EXPECT_NE(answer.find(expected), std::string::npos) << answer;
  }
}

}  // namespace
}  // namespace trireme::comm::native
