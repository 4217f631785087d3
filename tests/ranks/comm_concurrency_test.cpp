// Many operations at once, through Group and through c10d; futures; progress while the rank computes; failures.
#include <ATen/TensorOperators.h>
#include <ATen/core/ivalue_inl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/error.h"
#include "tests/ranks/comm_test.h"
#include "tests/ranks/world.h"

namespace trireme::tests {
namespace {

using comm::Group;
using comm::ReduceOp;
using comm::Work;
using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;

/// A new group of all ranks with a short timeout. On one rank there is no timeout, because nothing can be late.
Group impatient(const std::string& name, milliseconds timeout) {
  auto group = world().make_group(everyone(), name);
  if (group.size() > 1) group.process_group()->setTimeout(timeout);
  return group;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

// The second receive waits for the first one, whose time is not its own.
TEST(Concurrency, the_deadline_of_an_operation_begins_when_it_could_start) {
  TRIREME_ONLY_OVER_MPI("NCCL's own watchdog counts from the call");
  if (world().size() == 1) GTEST_SKIP() << "there is no rank to receive from";
  const auto group = impatient("patient", milliseconds(3000));
  if (group.rank() == 1)
    for (int message = 0; message < 2; ++message) {
      std::this_thread::sleep_for(milliseconds(2000));
      group.send(at::ones({4}, on()), 0);
    }
  if (group.rank() == 0) {
    const auto first = at::zeros({4}, on()), second = at::zeros({4}, on());
    EXPECT_EQ(error_of([&] {
                auto one = group.recv_async(first, 1), two = group.recv_async(second, 1);
                one.wait();
                two.wait();
              }),
              "no error");
    EXPECT_TRUE(at::equal(second, at::ones({4}, on())));
  }
  world().group().barrier();
}

TEST(Concurrency, many_operations_on_many_groups_in_different_orders_on_each_rank) {
  constexpr int kEach = 12;
  const auto& all = groups();
  struct InFlight {
    const Group* group;
    at::Tensor tensor, expected;
    Work work;
  };
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<InFlight> flights;
    for (std::size_t g = 0; g < all.size(); ++g) {
      // Each rank begins with another group, and odd ranks go backwards; within a group the order is the same.
      const auto shift = (g + static_cast<std::size_t>(world().rank())) % all.size();
      const auto& group = all[world().rank() % 2 == 0 ? shift : all.size() - 1 - shift].group;
      const int me = group.ranks()[static_cast<std::size_t>(group.rank())];
      for (int i = 0; i < kEach; ++i) {
        const std::vector<std::int64_t> shape{i % 4 == 3 ? 100'001 : 17 * i};
        const auto mine = values(me, shape, at::kFloat, i);
        if (i % 3 == 2) {
          auto output = at::zeros({shape[0] * group.size()}, on());
          Tensors parts;
          for (const int r : group.ranks()) parts.push_back(values(r, shape, at::kFloat, i));
          flights.push_back({&group, output, at::cat(parts), group.all_gather_into_async(output, mine)});
        } else {
          auto tensor = mine.clone();
          flights.push_back(
              {&group, tensor, reduced(group, shape, at::kFloat, ReduceOp::sum, i), group.all_reduce_async(tensor)});
        }
      }
    }
    // The order of waiting also differs between ranks.
    if ((world().rank() + turn) % 2 == 0) std::reverse(flights.begin(), flights.end());
    for (auto& flight : flights) {
      flight.work.wait();
      EXPECT_TRUE(same(flight.tensor, flight.expected)) << flight.group->axis();
    }
  }
}

TEST(Concurrency, rounds_of_consecutive_operations_do_not_mix) {
  // Even ranks send the second operation's message before the first operation's last one, odd ranks after it.
  for (const auto& [name, group] : groups()) {
    auto first = at::full({100'000}, 1.0f, on()), second = at::full({3}, 2.0f, on());
    auto long_work = group.all_reduce_async(first);
    if (group.rank() % 2 == 1) std::this_thread::sleep_for(milliseconds(30));
    auto short_work = group.all_reduce_async(second);
    short_work.wait();
    long_work.wait();
    EXPECT_TRUE(same(first, at::full({100'000}, static_cast<float>(group.size()), on()))) << name;
    EXPECT_TRUE(same(second, at::full({3}, 2.0f * static_cast<float>(group.size()), on()))) << name;
  }
}

TEST(Concurrency, a_group_is_created_while_others_are_in_use) {
  // Odd ranks join the operation only after the group exists: creating it must neither delay the operation nor wait for
  // it.
  const auto& group = world().group();
  const int n = group.size();
  auto tensor = at::full({400'000}, 1.0f, on());
  Work work;
  if (group.rank() % 2 == 0) work = group.all_reduce_async(tensor);
  const auto made = world().make_group(everyone(), "late");
  if (group.rank() % 2 == 1) work = group.all_reduce_async(tensor);
  auto other = at::full({3}, 2.0f, on());
  made.all_reduce(other);
  work.wait();
  EXPECT_TRUE(same(tensor, at::full({400'000}, static_cast<float>(n), on())));
  EXPECT_TRUE(same(other, at::full({3}, 2.0f * static_cast<float>(n), on())));
}

TEST(Concurrency, a_large_all_reduce_completes_while_the_rank_computes) {
  const auto& group = world().group();
  auto tensor = at::full({10'000'000}, 1.0f, on());  // 40 MB
  auto work = group.all_reduce_async(tensor);
  // The rank computes and never waits: the operation must complete by itself.
  auto matrix = at::full({64, 64}, 1.0f / 64, on());
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!work.done() && std::chrono::steady_clock::now() < limit)
    for (int i = 0; i < 50; ++i) matrix = matrix.matmul(matrix);
  ASSERT_TRUE(work.done());
  work.wait();
  EXPECT_TRUE(same(tensor, at::full({10'000'000}, static_cast<float>(group.size()), on())));
  EXPECT_NEAR(matrix[0][0].item<float>(), 1.0f / 64, 1e-4);
}

TEST(C10d, futures_complete_by_themselves_and_yield_the_tensors) {
  const auto& group = world().group();
  if (group.size() == 1) GTEST_SKIP() << "a world of one has no process group";
  const auto process_group = group.process_group();
  Tensors first{at::full({5}, 1.0f, on())}, second{at::full({3'000'000}, 1.0f, on())};
  auto early = process_group->allreduce(first)->getFuture();
  auto chained = process_group->allreduce(second)->getFuture()->then(
      [](c10::ivalue::Future& done) { return c10::IValue(done.value().toTensorVector()[0] / 2); },
      c10::TensorType::get());
  early->waitAndThrow();
  EXPECT_EQ(early->value().toTensorVector().size(), 1u);
  EXPECT_TRUE(early->value().toTensorVector()[0].is_alias_of(first[0]));
  chained->waitAndThrow();
  EXPECT_TRUE(same(chained->value().toTensor(), at::full({3'000'000}, 0.5f * static_cast<float>(group.size()), on())));
  auto work = process_group->allreduce(first);
  work->wait();
  EXPECT_TRUE(over_nccl() || work->isSuccess());  // NCCL has deprecated the question
  EXPECT_TRUE(work->getFuture()->completed());
  EXPECT_TRUE(same(first[0], at::full({5}, static_cast<float>(group.size() * group.size()), on())));
}

TEST(C10d, the_dispatcher_reaches_every_collective) {
  TRIREME_ONLY_OVER_MPI("NCCL has no receive from any source");
  if (world().size() == 1) GTEST_SKIP() << "one rank has no process group";
  for (const auto& [name, group] : groups()) {
    const auto pg = group.process_group();
    if (!pg) continue;
    SCOPED_TRACE(name);
    const int n = group.size(), me = group.rank();
    const auto mine = [&](std::int64_t count, int salt = 0) { return values(me, {count}, at::kFloat, salt); };
    const auto of = [&](int r, std::int64_t count, int salt = 0) { return values(r, {count}, at::kFloat, salt); };
    const auto sum = [&](std::int64_t count, int salt = 0) {
      auto total = of(0, count, salt);
      for (int r = 1; r < n; ++r) total += of(r, count, salt);
      return total;
    };
    Tensors one{mine(6)};
    pg->allreduce(one)->wait();
    EXPECT_TRUE(same(one[0], sum(6)));
    Tensors several{mine(3, 1), mine(50'000, 2)};
    pg->allreduce_coalesced(several)->wait();
    EXPECT_TRUE(same(several[0], sum(3, 1)) && same(several[1], sum(50'000, 2)));
    one = {mine(4)};
    pg->broadcast(one, {.rootRank = n - 1})->wait();
    EXPECT_TRUE(same(one[0], of(n - 1, 4)));
    one = {mine(4)};
    pg->reduce(one, {.rootRank = 0})->wait();
    EXPECT_TRUE(same(one[0], me == 0 ? sum(4) : mine(4)));
    std::vector<Tensors> lists(1);
    for (int r = 0; r < n; ++r) lists[0].push_back(at::zeros({4}, on()));
    one = {mine(4)};
    pg->allgather(lists, one)->wait();
    for (int r = 0; r < n; ++r) EXPECT_TRUE(same(lists[0][static_cast<std::size_t>(r)], of(r, 4)));
    std::vector<Tensors> columns;
    for (int r = 0; r < n; ++r) columns.push_back({at::zeros({2}, on()), at::zeros({3}, on())});
    Tensors two{mine(2, 1), mine(3, 2)};
    pg->allgather_coalesced(columns, two)->wait();
    for (int r = 0; r < n; ++r)
      EXPECT_TRUE(same(columns[static_cast<std::size_t>(r)][0], of(r, 2, 1)) &&
                  same(columns[static_cast<std::size_t>(r)][1], of(r, 3, 2)));
    Tensors wholes{at::zeros({2 * n}, on()), at::zeros({3 * n}, on())};
    pg->allgather_into_tensor_coalesced(wholes, two)->wait();
    for (int r = 0; r < n; ++r)
      EXPECT_TRUE(same(wholes[0].narrow(0, 2 * r, 2), of(r, 2, 1)) && same(wholes[1].narrow(0, 3 * r, 3), of(r, 3, 2)));
    Tensors parts{at::zeros({2}, on()), at::zeros({3}, on())}, fulls{mine(2 * n, 1), mine(3 * n, 2)};
    pg->reduce_scatter_tensor_coalesced(parts, fulls)->wait();
    EXPECT_TRUE(same(parts[0], sum(2 * n, 1).narrow(0, 2 * me, 2)) &&
                same(parts[1], sum(3 * n, 2).narrow(0, 3 * me, 3)));
    // Rank a sends b + 1 rows of two to rank b.
    std::vector<std::int64_t> out_splits(static_cast<std::size_t>(n), me + 1), in_splits;
    for (int r = 0; r < n; ++r) in_splits.push_back(r + 1);
    auto input = at::full({n * (n + 1) / 2, 2}, static_cast<float>(me), on()),
         output = at::zeros({n * (me + 1), 2}, on());
    pg->alltoall_base(output, input, out_splits, in_splits)->wait();
    for (int r = 0; r < n; ++r)
      EXPECT_TRUE(same(output.narrow(0, r * (me + 1), me + 1), at::full({me + 1, 2}, static_cast<float>(r), on())));
    if (me == 0) {
      std::vector<bool> heard(static_cast<std::size_t>(n));
      for (int i = 1; i < n; ++i) {
        Tensors any{at::zeros({1}, on())};
        auto work = pg->recvAnysource(any, 5);
        work->wait();
        EXPECT_EQ(any[0].item<float>(), static_cast<float>(work->sourceRank()));
        heard.at(static_cast<std::size_t>(work->sourceRank())) = true;
      }
      EXPECT_EQ(std::count(heard.begin(), heard.end(), true), n - 1);
    } else {
      Tensors number{at::full({1}, static_cast<float>(me), on())};
      pg->send(number, 0, 5)->wait();
    }
    pg->barrier()->wait();
  }
}

TEST(Failure, a_rank_that_never_joins_is_named) {
  TRIREME_ONLY_OVER_MPI("after a timeout NCCL ends the process");
  const auto group = impatient("lonely", milliseconds(400));
  const int n = group.size();
  if (n > 1 && group.rank() != n - 1) {
    const auto text = error_of([&] { group.all_reduce(at::zeros({8}, on())); });
    expect_parts(text, {"all_reduce", "group lonely", "sequence 1", "within 0.4 s"});
    // With few ranks all wait for this one. With many, only some do and name it; the others name one of those.
    if (n <= 4) expect_parts(text, {"rank " + std::to_string(n - 1)});
    // A future, through which c10d::Reducer waits, reports the error too.
    Tensors tensors{at::zeros({8}, on())};
    auto future = group.process_group()->allreduce(tensors)->getFuture();
    expect_parts(error_of([&] { future->waitAndThrow(); }), {"sequence 2"});
    EXPECT_TRUE(future->hasError());
  }
  auto still = at::ones({1}, on());
  world().group().all_reduce(still);  // other groups still work
  EXPECT_EQ(still.item<float>(), static_cast<float>(n));
}

TEST(Failure, a_wait_can_time_out_without_ending_the_operation) {
  TRIREME_ONLY_OVER_MPI("after a timeout NCCL ends the process");
  const auto& group = world().group();
  if (group.size() == 1) GTEST_SKIP() << "nothing is late in a world of one";
  const int last = group.size() - 1;
  Tensors tensors{at::ones({4}, on())};
  // The last rank joins when all others have waited in vain, however slow the machine is.
  const auto in_vain = world().make_group(everyone(), "in vain");
  if (group.rank() == last) in_vain.barrier();
  auto work = group.process_group()->allreduce(tensors);
  if (group.rank() != last) {
    expect_parts(error_of([&] { work->wait(milliseconds(10)); }), {"all_reduce", "0.01 s"});
    in_vain.barrier();
  }
  work->wait();
  EXPECT_TRUE(same(tensors[0], at::full({4}, static_cast<float>(group.size()), on())));
}

TEST(Failure, different_sizes_are_reported) {
  TRIREME_ONLY_OVER_MPI("NCCL does not compare sizes");
  if (world().size() == 1) GTEST_SKIP() << "no other rank to differ from";
  for (const std::int64_t more : {1, 100'000}) {
    const auto group = impatient("uneven", milliseconds(60'000));
    const auto text = error_of([&] { group.all_reduce(at::zeros({4 + more * group.rank()}, on())); });
    expect_parts(text, {"all_reduce", "group uneven", "bytes", "shapes"});
    world().group().barrier();
  }
}

TEST(Failure, wrong_calls_are_refused_before_anything_is_sent) {
  TRIREME_ONLY_OVER_MPI("NCCL has other messages");
  const auto& group = world().group();
  expect_parts(error_of([&] { group.all_gather_into(at::zeros({group.size() * 2 + 1}, on()), at::zeros({2}, on())); }),
               {"all_gather", "world"});
  expect_parts(error_of([&] { group.broadcast(at::zeros({1}, on()), group.size()); }), {"no rank"});
  expect_parts(error_of([&] { group.all_to_all({}, {}); }), {"outputs"});
  if (group.size() == 1) return;
  expect_parts(error_of([&] { group.all_reduce(at::zeros({1}, on(at::kBool)), ReduceOp::avg); }), {"bool"});
  expect_parts(error_of([&] { group.all_reduce(at::zeros({1}, on(at::kComplexFloat))); }), {"complex64"});
  expect_parts(error_of([&] { group.send(at::zeros({1}, on()), (group.rank() + 1) % group.size(), -1); }), {"tag -1"});
  // Every rank lists itself first, so that no two lists agree.
  expect_parts(error_of([&] {
                 (void)world().make_group({group.rank(), (group.rank() + 1) % group.size()}, "odd");
               }),
               {"odd", "different lists"});
  auto still = at::ones({1}, on());
  group.all_reduce(still);
  EXPECT_EQ(still.item<float>(), static_cast<float>(group.size()));
}

}  // namespace
}  // namespace trireme::tests
