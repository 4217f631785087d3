// Groups that are created and released: a new group reuses the communicators of released ones, and sees none of their
// messages.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/error.h"
#include "core/comm/host_values.h"
#include "tests/ranks/comm_test.h"
#include "tests/ranks/own_wire.h"
#include "tests/ranks/world.h"

namespace {
int communicators_made = 0;
std::atomic<std::int64_t> messages_sent{0};
}  // namespace

// MPI's profiling interface lets the library call these.
extern "C" int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm* made) {
  ++communicators_made;
  return PMPI_Comm_create_group(comm, group, tag, made);
}
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  ++messages_sent;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

namespace trireme::tests {
namespace {

using comm::Group;

void expect_sum_over(const Group& group) {
  auto tensor = at::full({3}, 1.0f, on());
  group.all_reduce(tensor);
  EXPECT_TRUE(same(tensor, at::full({3}, static_cast<float>(group.size()), on())));
}

TEST(CommGroups, reuse_the_communicators_of_released_groups) {
  if (world().size() == 1) GTEST_SKIP() << "a world of one has no communicators";
  auto first_only = everyone();
  first_only.pop_back();  // the last rank is not a member
  const bool member = world().rank() + 1 < world().size();
  int made = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<Group> groups{world().make_group(everyone(), "a"), world().make_group(everyone(), "b")};
    if (const auto some = world().make_group(first_only, "some"); member) groups.push_back(some);
    for (const auto& group : groups) expect_sum_over(group);
    // The ranks release the groups in different orders, and while others still use them.
    if (world().rank() % 2 == 1) std::reverse(groups.begin(), groups.end());
    while (!groups.empty()) groups.pop_back();
    if (round == 0) made = communicators_made;
  }
  EXPECT_EQ(made > 0, over_mpi());          // our own transport makes no communicators
  EXPECT_LE(communicators_made, made + 2);  // an operation may outlive its group by a moment
}

TEST(CommGroups, of_a_partition_are_created_together) {
  const int n = world().size();
  if (n == 1) GTEST_SKIP() << "a world of one has no communicators";
  // The last rank is alone on 3 and 7 ranks. The order is descending, so that group ranks are not world ranks.
  const auto pair_of = [n](int rank) {
    std::vector<int> pair;
    for (int r = std::min(n - 1, rank / 2 * 2 + 1); r >= rank / 2 * 2; --r) pair.push_back(r);
    return pair;
  };
  const auto before = communicators_made;
  for (int round = 0; round < 10; ++round) {
    const auto group = world().partition(pair_of(world().rank()), "pair");
    EXPECT_EQ(group.ranks(), pair_of(world().rank()));
    auto tensor = at::full({2}, static_cast<float>(1 << world().rank()), on());
    group.all_reduce(tensor);
    float sum = 0;
    for (const int r : group.ranks()) sum += static_cast<float>(1 << r);
    EXPECT_TRUE(same(tensor, at::full({2}, sum, on())));
  }
  EXPECT_LE(communicators_made, before + 2);
  // A rank with another partition is an error on every rank, not a hang.
  auto mine = pair_of(world().rank());
  if (world().rank() == 0) std::reverse(mine.begin(), mine.end());
  EXPECT_THROW((void)world().partition(mine, "pair"), CommError);
  EXPECT_THROW((void)world().partition(pair_of(world().rank()), world().rank() == 1 ? "one" : "other"), CommError);
}

/// The number of messages that all ranks of the world send together for one call each.
std::int64_t messages_of(const std::function<void()>& call) {
  const auto before = messages_sent.load();
  call();
  auto total = at::full({1}, messages_sent.load() - before, on(at::kLong));
  world().group().all_reduce(total);
  return total.item<std::int64_t>();
}

// docs/scale.md has the formulas.
TEST(Messages, follow_the_formulas) {
  if (!over_mpi()) GTEST_SKIP() << "counts messages by MPI's profiling interface";
  const auto& group = world().group();
  const std::int64_t n = group.size();
  std::int64_t doublings = 0, power = 1;
  for (; (std::int64_t{1} << doublings) < n; ++doublings)
    if (2 * power <= n) power *= 2;
  const auto everyone_to_each = n * (n - 1), one_each = n - 1;
  const auto small = n > 4 ? n * doublings : everyone_to_each;
  // Sums of integers are the same in any order; the ranks beyond a power of two send and receive once.
  const auto integers = n > 4 ? power * (doublings - (power < n ? 1 : 0)) + 2 * (n - power) : everyone_to_each;
  const auto bytes = [](std::int64_t count) { return at::zeros({count}, on(at::kByte)); };
  EXPECT_EQ(messages_of([&] { group.barrier(); }), small);
  EXPECT_EQ(messages_of([&] { group.all_reduce(at::zeros({8}, on())); }), small);
  EXPECT_EQ(messages_of([&] { group.all_reduce(bytes(8)); }), integers);
  EXPECT_EQ(messages_of([&] { group.all_gather_into(bytes(8 * n), bytes(8)); }), small);
  EXPECT_EQ(messages_of([&] { group.broadcast(bytes(1 << 20), 0); }), one_each);
  std::vector<at::Tensor> all(static_cast<std::size_t>(group.rank() == 0 ? n : 0), bytes(8));
  EXPECT_EQ(messages_of([&] { group.gather(all, bytes(8), 0); }), one_each);
  EXPECT_EQ(messages_of([&] { (void)comm::gather_text(group, "text"); }), 2 * one_each);
  EXPECT_EQ(messages_of([&] { (void)comm::broadcast_text(group, "text"); }), 2 * one_each);
  EXPECT_EQ(messages_of([&] { (void)world().make_group(everyone(), "all"); }), n > 1 ? integers : 0);
  const auto pair = world().rank() / 2 * 2;  // the last rank of an odd number is alone
  const auto partner = std::min<int>(static_cast<int>(n) - 1, pair + 1);
  const auto mine = partner == pair ? std::vector<int>{pair} : std::vector<int>{pair, partner};
  EXPECT_EQ(messages_of([&] { (void)world().partition(mine, "pairs"); }), n > 1 ? integers : 0);
  // Longer tensors are split over all ranks, or over some of them where the parts would be short.
  EXPECT_EQ(messages_of([&] { group.all_reduce(bytes(1 << 20)); }), 2 * everyone_to_each);
  if (n > 4) {
    EXPECT_EQ(messages_of([&] { group.all_reduce(bytes(40 << 10)); }), 2 * 2 * one_each);
  }
}

TEST(CommGroups, that_coexist_have_separate_communicators) {
  if (world().size() == 1) GTEST_SKIP() << "a world of one has no communicators";
  TRIREME_ONLY_OVER_MPI("NCCL needs the operations of several groups in the same order on all ranks");
  std::vector<Group> groups;
  for (int i = 0; i < 6; ++i) groups.push_back(world().make_group(everyone(), "side"));
  // The ranks start the operations in different orders: a shared communicator would mix them up.
  std::vector<at::Tensor> tensors;
  std::vector<comm::Work> works(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) tensors.push_back(at::full({5}, static_cast<float>(i), on()));
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto which = world().rank() % 2 == 0 ? i : groups.size() - 1 - i;
    works[which] = groups[which].all_reduce_async(tensors[which]);
  }
  for (auto& work : works) work.wait();
  for (std::size_t i = 0; i < groups.size(); ++i)
    EXPECT_TRUE(same(tensors[i], at::full({5}, static_cast<float>(i) * static_cast<float>(world().size()), on())));
}

TEST(CommGroups, do_not_receive_messages_of_released_groups) {
  TRIREME_ONLY_OVER_MPI("NCCL does not drop such messages");
  if (world().size() == 1) GTEST_SKIP() << "there is no rank to send to";
  const auto talk = [](float value, bool receive) {
    const auto group = world().make_group(everyone(), "talk");
    auto tensor = at::full({3}, value, on());
    if (group.rank() == 1) group.send(tensor, 0);
    if (group.rank() == 0 && receive) {
      tensor.zero_();
      group.recv(tensor, 1);
      EXPECT_TRUE(same(tensor, at::full({3}, value, on())));
    }
  };
  talk(1, /*receive=*/false);  // as when an error ends a step early
  talk(2, /*receive=*/true);
  talk(3, /*receive=*/true);
}

}  // namespace
}  // namespace trireme::tests
