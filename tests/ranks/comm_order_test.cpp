// Many sends and receives under one tag: each receive gets its own message, no matter which is polled, ready or waited
// for first. Also the texts that ranks exchange before any group exists, and their texts and numbers on the host.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/comm/engine/engine.h"
#include "core/comm/host_values.h"
#include "core/comm/transport.h"
#include "tests/ranks/comm_test.h"
#include "tests/ranks/own_wire.h"
#include "tests/ranks/world.h"

namespace trireme::tests {
namespace {

using comm::Group;
using comm::Work;
namespace engine = comm::engine;
using Tensors = std::vector<at::Tensor>;
using Order = std::vector<std::size_t>;

/// Orders of waiting for `count` operations: as started, reversed, even before odd, and random.
std::vector<Order> orders(std::size_t count) {
  Order forward(count);
  std::iota(forward.begin(), forward.end(), 0);
  auto backward = forward, halves = forward, chance = forward;
  std::reverse(backward.begin(), backward.end());
  std::stable_partition(halves.begin(), halves.end(), [](std::size_t i) { return i % 2 == 0; });
  std::shuffle(chance.begin(), chance.end(), std::mt19937(static_cast<unsigned>(world().rank())));
  return {forward, backward, halves, chance};
}

float value_of(int from, std::size_t message) {
  return static_cast<float>(1000 * (from + 1)) + static_cast<float>(message);
}

void expect_in_order(const Tensors& received, int from) {
  Order wrong;
  for (std::size_t i = 0; i < received.size(); ++i)
    if (!same(received[i], at::full(received[i].sizes(), value_of(from, i), received[i].options()))) wrong.push_back(i);
  EXPECT_EQ(wrong, Order{}) << "these receives got another message";
}

TEST(Order, receives_under_one_tag_get_their_own_messages) {
  TRIREME_ONLY_OVER_MPI("NCCL needs sends and receives started in matching order");
  if (world().size() == 1) GTEST_SKIP() << "there is no other rank";
  constexpr std::size_t kMessages = 60;
  for (const auto& [name, group] : groups()) {
    if (group.size() == 1) continue;
    for (const std::int64_t elements : {1, 700, 30'000})  // in the envelope, eager, by rendezvous
      for (const auto& order : orders(kMessages)) {
        SCOPED_TRACE(name + ", " + std::to_string(elements) + " elements, first " + std::to_string(order[0]));
        const int next = (group.rank() + 1) % group.size();
        const int before = (group.rank() + group.size() - 1) % group.size();
        Tensors sent, received;
        std::vector<Work> works(2 * kMessages);
        for (std::size_t i = 0; i < kMessages; ++i) {
          // Ranks alternate in what they start first, so that messages come early and late.
          received.push_back(at::zeros({elements}, on()));
          sent.push_back(at::full({elements}, value_of(group.rank(), i), on()));
          const auto receive = [&] { works[i] = group.recv_async(received[i], before, 3); };
          const auto send = [&] { works[kMessages + i] = group.send_async(sent[i], next, 3); };
          if ((static_cast<std::size_t>(group.rank()) + i / 8) % 2 == 0) {
            receive();
            send();
          } else {
            send();
            receive();
          }
        }
        for (const auto i : order) works[i].wait();
        for (auto& work : works) work.wait();
        expect_in_order(received, before);
      }
  }
}

TEST(Order, a_receive_from_any_source_keeps_its_place) {
  TRIREME_ONLY_OVER_MPI("NCCL has no receive from any source");
  const auto& group = world().group();
  if (group.size() == 1) GTEST_SKIP() << "there is no rank to receive from";
  const auto process_group = group.process_group();
  constexpr int kTag = 6;
  if (group.rank() != 0) {
    for (std::size_t i = 0; i < 3; ++i) group.send(at::full({5}, value_of(group.rank(), i), on()), 0, kTag);
    group.barrier();
    return;
  }
  // Rank 0 receives from rank 1, from any source (another rank's first message or rank 1's second), and from rank 1
  // again.
  Tensors first{at::zeros({5}, on())}, any{at::zeros({5}, on())}, last{at::zeros({5}, on())};
  auto first_work = process_group->recv(first, 1, kTag);
  auto any_work = process_group->recvAnysource(any, kTag);
  auto last_work = process_group->recv(last, 1, kTag);
  last_work->wait();
  any_work->wait();
  first_work->wait();
  const int source = any_work->sourceRank();
  EXPECT_TRUE(same(first[0], at::full({5}, value_of(1, 0), on())));
  EXPECT_TRUE(same(any[0], at::full({5}, value_of(source, source == 1 ? 1 : 0), on())));
  EXPECT_TRUE(same(last[0], at::full({5}, value_of(1, source == 1 ? 2 : 1), on())));
  std::vector<std::size_t> heard(static_cast<std::size_t>(group.size()), 0);
  heard[1] = source == 1 ? 3 : 2;
  if (source != 1) heard[static_cast<std::size_t>(source)] = 1;
  for (int peer = 1; peer < group.size(); ++peer)
    for (auto i = heard[static_cast<std::size_t>(peer)]; i < 3; ++i) {
      auto tensor = at::zeros({5}, on());
      group.recv(tensor, peer, kTag);
      EXPECT_TRUE(same(tensor, at::full({5}, value_of(peer, i), on()))) << "message " << i << " of rank " << peer;
    }
  group.barrier();
}

TEST(Order, receives_from_any_source_do_not_wait_for_silent_ranks) {
  TRIREME_ONLY_OVER_MPI("NCCL has no receive from any source");
  // Rank 1 sends only when rank 0 has received from another rank: the older receive from rank 1 must not delay the one
  // from any source.
  const auto& group = world().group();
  if (group.size() < 3) GTEST_SKIP() << "needs three ranks";
  constexpr int kTag = 7;
  if (group.rank() == 0) {
    Tensors one{at::zeros({2}, on())}, any{at::zeros({2}, on())};
    auto one_work = group.process_group()->recv(one, 1, kTag);
    auto any_work = group.process_group()->recvAnysource(any, kTag);
    any_work->wait();
    EXPECT_EQ(any_work->sourceRank(), 2);
    group.send(at::zeros({1}, on()), 1, kTag);
    one_work->wait();
    EXPECT_TRUE(same(one[0], at::full({2}, 1.0f, on())));
  } else if (group.rank() == 1) {
    group.recv(at::zeros({1}, on()), 0, kTag);
    group.send(at::full({2}, 1.0f, on()), 0, kTag);
  } else if (group.rank() == 2) {
    group.send(at::full({2}, 2.0f, on()), 0, kTag);
  }
  group.barrier();
}

/// A separate engine and wire, with which the test decides when operations are ready. The world's engine is
/// idle meanwhile, because only one thread at a time may call MPI.
struct OwnEngine {
  OwnEngine() {
    world().group().barrier();
    channel->axis = "own";
    channel->ranks = everyone();
    channel->rank = world().rank();
    channel->size = world().size();
  }
  ~OwnEngine() { engine->stop(); }
  c10::intrusive_ptr<engine::Operation> start(c10d::OpType type, const at::Tensor& tensor, int peer,
                                              std::function<bool()> ready) const {
    const bool sends = type == c10d::OpType::SEND;
    engine::Program program;
    program.name = sends ? "send" : "recv";
    program.tag = 4;
    program.timeout = std::chrono::seconds(60);
    engine::Round round;
    (sends ? round.sends : round.receives).push_back({tensor.data_ptr(), tensor.nbytes(), peer});
    program.rounds.push_back(std::move(round));
    program.tensors.push_back(tensor);
    program.ready = std::move(ready);
    auto operation = c10::make_intrusive<engine::Operation>(engine, channel, type, std::move(program));
    engine->start(operation);
    return operation;
  }
  std::shared_ptr<engine::Channel> channel = std::make_shared<engine::Channel>();
  OwnWire wire{*channel};
  std::shared_ptr<engine::Engine> engine = std::make_shared<engine::Engine>(wire.wire);
};

TEST(Order, operations_that_are_ready_late_keep_their_places) {
  if (world().size() == 1) GTEST_SKIP() << "there is no rank to receive from";
  const OwnEngine own;
  const int next = (world().rank() + 1) % world().size(),
            before = (world().rank() + world().size() - 1) % world().size();
  // Either the sends' copies to the host are late, or those of what receives write; only the first, or all but the
  // last.
  constexpr std::size_t kMessages = 6;
  for (const bool sends_late : {true, false})
    for (const std::size_t late : {std::size_t{1}, kMessages - 1}) {
      SCOPED_TRACE(std::string(sends_late ? "sends" : "receives") + " late: " + std::to_string(late));
      std::vector<c10::intrusive_ptr<engine::Operation>> works;
      std::atomic<bool> copied{false};
      Tensors received;
      for (std::size_t i = 0; i < kMessages; ++i) {
        const auto ready = [&copied, is_late = i < late] { return !is_late || copied.load(); };
        received.push_back(at::zeros({9}));  // in host memory, like staged tensors
        works.push_back(own.start(c10d::OpType::RECV, received[i], before,
                                  sends_late ? std::function<bool()>() : std::function<bool()>(ready)));
        works.push_back(own.start(c10d::OpType::SEND, at::full({9}, value_of(world().rank(), i)), next,
                                  sends_late ? std::function<bool()>(ready) : std::function<bool()>()));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the background thread has polled all of them
      copied = true;
      for (const auto& work : works) work->wait(std::chrono::milliseconds(0));
      expect_in_order(received, before);
    }
}

TEST(Transport, rank_0_receives_all_texts_and_answers_all) {
  if (world().size() == 1) GTEST_SKIP() << "a world of one starts no transport";
  world().group().barrier();  // the world's engine is idle: only this transport calls MPI
  const auto transport = own_transport();
  const auto said = [](int rank) {
    return std::string(static_cast<std::size_t>(rank * 60), 'x') + std::to_string(rank);
  };
  std::vector<std::string> expected, heard;
  for (int r = 0; r < world().size(); ++r) expected.push_back(said(r));
  const auto answer = transport->decide(said(world().rank()), [&](const std::vector<std::string>& all) {
    heard = all;
    return std::string(511, 'a');
  });
  EXPECT_EQ(heard, world().rank() == 0 ? expected : std::vector<std::string>());
  EXPECT_EQ(answer, std::string(511, 'a'));
  EXPECT_TRUE(over_nccl() || world().transport().starts_with(transport->name())) << transport->name();
}

TEST(Text, is_gathered_to_one_rank_or_all_and_broadcast_from_any) {
  for (const auto& [name, group] : groups()) {
    SCOPED_TRACE(name);
    const auto said = [](int world_rank) { return std::string(static_cast<std::size_t>(world_rank * 7), 'y'); };
    std::vector<std::string> all;
    for (const int r : group.ranks()) all.push_back(said(r));
    EXPECT_EQ(comm::all_gather_text(group, said(world().rank())), all);
    EXPECT_EQ(comm::gather_text(group, said(world().rank())), group.rank() == 0 ? all : std::vector<std::string>());
    for (int root = 0; root < group.size(); ++root)
      EXPECT_EQ(comm::broadcast_text(group, "from " + std::to_string(world().rank()), root),
                "from " + std::to_string(group.ranks()[static_cast<std::size_t>(root)]));
    EXPECT_EQ(comm::broadcast_text(group, ""), "");
  }
}

template <class T>
std::vector<T> numbers_in(const at::Tensor& tensor) {
  const auto host = tensor.cpu();
  return {host.const_data_ptr<T>(), host.const_data_ptr<T>() + host.numel()};
}

template <class T>
void expect_reduced(const Group& group, comm::ReduceOp op) {
  SCOPED_TRACE(op_name(op));
  constexpr auto kType = c10::CppTypeToScalarType<T>::value;
  const auto mine = numbers_in<T>(values(world().rank(), {3}, kType));
  const auto expected = numbers_in<T>(reduced(group, {3}, kType, op));
  EXPECT_EQ(comm::reduce_values(group, mine, op), expected);
  EXPECT_EQ(comm::reduce_value(group, mine[0], op), expected[0]);
}

TEST(HostValues, are_reduced_broadcast_and_gathered) {
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();  // float64 has not all integers near it
  for (const auto& [name, group] : groups()) {
    SCOPED_TRACE(name);
    for (const auto op : {comm::ReduceOp::sum, comm::ReduceOp::avg, comm::ReduceOp::min, comm::ReduceOp::max,
                          comm::ReduceOp::product}) {
      expect_reduced<std::int64_t>(group, op);
      expect_reduced<double>(group, op);
    }
    std::vector<std::vector<std::int64_t>> all;
    for (const int r : group.ranks()) all.push_back({r, kLeast + r});
    EXPECT_EQ(comm::all_gather_values(group, {world().rank(), kLeast + world().rank()}), all);
    for (int root = 0; root < group.size(); ++root) {
      const auto from = group.ranks()[static_cast<std::size_t>(root)];
      EXPECT_EQ(comm::broadcast_value(group, kLeast + world().rank(), root), kLeast + from);
      EXPECT_TRUE(comm::any_rank(group, group.rank() == root));
      EXPECT_EQ(comm::every_rank(group, group.rank() == root), group.size() == 1);
    }
    EXPECT_FALSE(comm::any_rank(group, false));
    EXPECT_TRUE(comm::every_rank(group, true));
  }
}

}  // namespace
}  // namespace trireme::tests
