// Groups that come and go: what one leaves behind serves the next, and nothing of it is met there.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "tests/mpi/comm_test.h"
#include "tests/mpi/world.h"

namespace {
int communicators_made = 0;
}

/// MPI's profiling interface: the library calls this one.
extern "C" int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm* made) {
  ++communicators_made;
  return PMPI_Comm_create_group(comm, group, tag, made);
}

namespace trireme::tests {
namespace {

using comm::Group;

void expect_sum_over(const Group& group) {
  auto tensor = at::full({3}, 1.0f);
  group.all_reduce(tensor);
  EXPECT_TRUE(same(tensor, at::full({3}, static_cast<float>(group.size()))));
}

TEST(Groups, that_are_gone_leave_their_communicators_to_the_next) {
  if (world().size() == 1) GTEST_SKIP() << "a world of one has no communicators";
  auto first_only = everyone();
  first_only.pop_back();  // the last rank is no member
  const bool member = world().rank() + 1 < world().size();
  int made = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<Group> groups{world().make_group(everyone(), "a"), world().make_group(everyone(), "b")};
    if (const auto some = world().make_group(first_only, "some"); member) groups.push_back(some);
    for (const auto& group : groups) expect_sum_over(group);
    // Each rank lets go in an order of its own, and while others are still at it.
    if (world().rank() % 2 == 1) std::reverse(groups.begin(), groups.end());
    while (!groups.empty()) groups.pop_back();
    if (round == 0) made = communicators_made;
  }
  EXPECT_GT(made, 0);
  EXPECT_LE(communicators_made, made + 2);  // an operation may outlive its group by a moment
}

TEST(Groups, of_a_partition_are_made_at_once) {
  const int n = world().size();
  if (n == 1) GTEST_SKIP() << "a world of one has no communicators";
  // Of uneven sizes, the last one alone on 3 and 7 ranks; in falling order, so that group ranks are not world ranks.
  const auto pair_of = [n](int rank) {
    std::vector<int> pair;
    for (int r = std::min(n - 1, rank / 2 * 2 + 1); r >= rank / 2 * 2; --r) pair.push_back(r);
    return pair;
  };
  const auto before = communicators_made;
  for (int round = 0; round < 10; ++round) {
    const auto group = world().partition(pair_of(world().rank()), "pair");
    EXPECT_EQ(group.ranks(), pair_of(world().rank()));
    auto tensor = at::full({2}, static_cast<float>(1 << world().rank()));
    group.all_reduce(tensor);
    float sum = 0;
    for (const int r : group.ranks()) sum += static_cast<float>(1 << r);
    EXPECT_TRUE(same(tensor, at::full({2}, sum)));
  }
  EXPECT_LE(communicators_made, before + 2);
  // A rank that thinks of another partition is an error on every rank, not a hang.
  auto mine = pair_of(world().rank());
  if (world().rank() == 0) std::reverse(mine.begin(), mine.end());
  EXPECT_THROW((void)world().partition(mine, "pair"), CommError);
  EXPECT_THROW((void)world().partition(pair_of(world().rank()), world().rank() == 1 ? "one" : "other"), CommError);
}

TEST(Groups, that_live_side_by_side_have_communicators_of_their_own) {
  if (world().size() == 1) GTEST_SKIP() << "a world of one has no communicators";
  std::vector<Group> groups;
  for (int i = 0; i < 6; ++i) groups.push_back(world().make_group(everyone(), "side"));
  // In other orders on each rank: one that were another's would mix them up.
  std::vector<at::Tensor> tensors;
  std::vector<comm::Work> works(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) tensors.push_back(at::full({5}, static_cast<float>(i)));
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto which = world().rank() % 2 == 0 ? i : groups.size() - 1 - i;
    works[which] = groups[which].all_reduce_async(tensors[which]);
  }
  for (auto& work : works) work.wait();
  for (std::size_t i = 0; i < groups.size(); ++i)
    EXPECT_TRUE(same(tensors[i], at::full({5}, static_cast<float>(i) * static_cast<float>(world().size()))));
}

TEST(Groups, do_not_meet_messages_that_nobody_received) {
  if (world().size() == 1) GTEST_SKIP() << "nobody to send to";
  const auto talk = [](float value, bool receive) {
    const auto group = world().make_group(everyone(), "talk");
    auto tensor = at::full({3}, value);
    if (group.rank() == 0) group.send(tensor, 1);
    if (group.rank() == 1 && receive) {
      tensor.zero_();
      group.recv(tensor, 0);
      EXPECT_TRUE(same(tensor, at::full({3}, value)));
    }
  };
  talk(1, /*receive=*/false);  // a step that an error cut short
  talk(2, /*receive=*/true);
  talk(3, /*receive=*/true);
}

}  // namespace
}  // namespace trireme::tests
