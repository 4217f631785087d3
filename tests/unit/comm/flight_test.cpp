// The flight record: what is written is read, by whom and how long, and the report on it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/comm/flight/folder.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/report.h"

namespace trireme::comm::flight {
namespace {

const std::vector<std::int64_t> kSizes{8, 16};

/// A run of three ranks, of which this process is rank 1.
class Recorded : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv(kFolderVariable, parent_.path().c_str(), 1);
    open({.rank = 1, .size = 3, .local_size = 3});
    group_ = join("dp", {0, 1, 2}, 1);
  }
  void TearDown() override {
    end();
    unsetenv(kFolderVariable);
  }
  Entry call(const char* op, std::uint64_t sequence) const {
    return enter(group_, {.op = op, .sequence = sequence, .dtype = "float32", .sizes = kSizes, .elements = 128});
  }
  RankView own() const { return read_ranks(folder()).at(0); }

  ParentFolder parent_;
  GroupName group_;
};

TEST_F(Recorded, IsReadAsItWasWritten) {
  set_step(12);
  call("all_reduce", 1).completed();
  auto second = call("broadcast", 2);
  second.started();
  const PhaseScope phase(Phase::backward, 3);
  const auto view = own();
  EXPECT_EQ(view.record.rank, 1);
  EXPECT_EQ(view.record.pid, getpid());
  EXPECT_EQ(view.process, ProcessState::running);
  EXPECT_EQ(view.record.step, 12);
  EXPECT_EQ(view.record.microbatch, 3);
  EXPECT_EQ(view.record.phase, Phase::backward);
  ASSERT_NE(view.current(), nullptr);
  EXPECT_STREQ(view.current()->op.data(), "broadcast");
  EXPECT_GE(view.current()->started, view.current()->entered);
  ASSERT_NE(view.last_completed(), nullptr);
  EXPECT_EQ(view.last_completed()->sequence, 1U);
  EXPECT_EQ(view.last_completed()->sizes[1], 16);
}

TEST_F(Recorded, AnOperationThatWaitsOutlivesTheRing) {
  auto waiting = call("all_gather", 1);
  for (std::uint64_t i = 2; i < 3 * kOperations; ++i) call("all_reduce", i).completed();
  const auto view = own();
  EXPECT_EQ(view.operations().size(), kOperations);
  ASSERT_NE(view.current(), nullptr);
  EXPECT_STREQ(view.current()->op.data(), "all_gather");
  waiting.completed();
  EXPECT_EQ(own().current(), nullptr);
}

TEST_F(Recorded, AnEntryDoesNothingOnceItsPlaceIsReused) {
  auto first = call("all_gather", 1);
  first.completed();
  for (std::uint64_t i = 2; i < 2 * kOperations; ++i) (void)call("all_reduce", i);
  first.failed();
  for (const auto& operation : own().operations()) EXPECT_EQ(operation.state, OperationState::entered);
}

TEST_F(Recorded, OutlivesItsProcess) {
  const pid_t child = fork();
  if (child == 0) {
    open({.rank = 2, .size = 3, .local_size = 3});
    (void)enter(join("dp", {0, 1, 2}, 1), {.op = "all_reduce", .sequence = 7});
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  const auto ranks = read_ranks(folder());
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_TRUE(ranks[1].died());
  EXPECT_EQ(ranks[1].current()->sequence, 7U);
  EXPECT_TRUE(job_is_dying());
  EXPECT_TRUE(is_failure(ranks));
}

TEST(Folder, IsRemovedByTheLastRankWithoutAParent) {
  unsetenv(kFolderVariable);
  const LaunchInfo place{.rank = 0, .size = 2, .local_size = 1, .job = "flight test"};
  open(place);
  const auto where = folder();
  ASSERT_FALSE(where.empty());
  EXPECT_TRUE(std::filesystem::exists(where));
  end();
  EXPECT_FALSE(std::filesystem::exists(where));
  EXPECT_EQ(rank_folder({.rank = 0, .size = 1}), "");  // one process needs none
}

// A launcher may give every run the same name, and the ranks of one may have been killed after one has said why it
// ends.
TEST(Folder, WhatAnEarlierRunHasSaidIsForgotten) {
  unsetenv(kFolderVariable);
  const LaunchInfo rank{.rank = 0, .size = 2, .local_size = 2, .job = "flight test, twice"};
  const pid_t child = fork();
  if (child == 0) {
    open(rank);
    shared_control()->claimed = shared_control()->printed = 1;
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  open(rank);
  ASSERT_NE(shared_control(), nullptr);
  EXPECT_EQ(shared_control()->claimed, 0);
  shared_control()->claimed = 2;
  const pid_t other = fork();
  if (other == 0) {
    auto second = rank;
    second.rank = 1;
    open(second);
    _exit(shared_control()->claimed);
  }
  ASSERT_EQ(waitpid(other, &status, 0), other);
  EXPECT_EQ(WEXITSTATUS(status), 2) << "a rank of the same run has not found what was said";
  remove_folder(folder());
  end();
}

/// A rank of a fabricated run, all of whose ranks are in group "dp" with identity 5.
RankView rank_of(int rank, std::vector<OperationRecord> operations = {}) {
  RankView view{};
  view.record.rank = rank;
  view.record.microbatch = view.record.block = -1;
  view.record.groups[0] = {.id = 5, .rank = rank, .size = 3, .axis = {'d', 'p'}};
  for (std::size_t i = 0; i < operations.size(); ++i) view.record.operations[i] = operations[i];
  return view;
}

OperationRecord operation(const char* op, std::uint64_t sequence, OperationState state, std::int64_t elements = 4) {
  OperationRecord made{};
  made.number = made.sequence = sequence;
  made.group = 5;
  made.axis = {'d', 'p'};
  made.dtype = {'f', 'l', 'o', 'a', 't', '3', '2'};
  made.dimensions = 1;
  made.sizes[0] = made.elements = elements;
  made.root = -1;
  made.completed = static_cast<std::int64_t>(sequence);
  made.state = state;
  std::snprintf(made.op.data(), made.op.size(), "%s", op);
  return made;
}

constexpr auto kDone = OperationState::completed, kFailed = OperationState::failed, kStarted = OperationState::started;

RankView lost(RankView view, const char* text, std::int64_t time) {
  view.record.end = EndKind::lost;
  view.record.ended = time;
  std::snprintf(view.record.text.data(), view.record.text.size(), "%s", text);
  return view;
}

RankView with(RankView view, ProcessState state) {
  view.process = state;
  return view;
}

RankView operation_of(int rank, std::uint64_t sequence, OperationState state) {
  return rank_of(rank, {operation("all_reduce", sequence, state)});
}

/// The rank is also in a group "tp" of ranks 0 and 1, with identity 6.
RankView in_pair(RankView view) {
  view.record.groups[1] = {.id = 6, .rank = view.record.rank, .size = 2, .axis = {'t', 'p'}};
  return view;
}

OperationRecord in_pair(OperationRecord made) {
  made.group = 6;
  made.axis = {'t', 'p'};
  return made;
}

OperationRecord entered_at(OperationRecord made, std::int64_t time) {
  made.entered = time;
  return made;
}

struct ReportCase {
  std::vector<RankView> ranks;
  std::vector<std::string> expected;
  std::vector<std::string> absent{};
};

TEST(Report, NamesTheRankAndTheOperation) {
  const auto waits = lost(rank_of(0, {operation("all_reduce", 8, kFailed)}), "it took too long", 100);
  const std::vector<ReportCase> cases{
      // A rank that was killed while another one waits for it.
      {{rank_of(0, {operation("all_reduce", 8, kStarted)}),
        with(rank_of(1, {operation("all_reduce", 7, kDone)}), ProcessState::gone), rank_of(2)},
       {"rank 1 has died", "  1     dead     -                             all_reduce dp #7 [4] float32",
        "rank 1 has not entered all_reduce dp #8 [4] float32: it is dead"}},
      // A rank that was killed within the operation: its messages are not late.
      {{operation_of(0, 8, kStarted), with(operation_of(1, 8, kStarted), ProcessState::gone),
        operation_of(2, 8, kStarted)},
       {"rank 1 has died", "rank 1 has entered all_reduce dp #8 [4] float32, and is dead"},
       {"did not arrive", "rank 0 has", "rank 2 has"}},
      {{operation_of(0, 8, kStarted), with(operation_of(1, 8, kDone), ProcessState::gone), rank_of(2)},
       {"rank 1 has completed all_reduce dp #8 [4] float32, and is dead"},
       {"rank 2 has not entered"}},
      // Of two the one whose last operation began first: MPI has ended the other one for it.
      {{with(rank_of(0, {entered_at(operation("all_reduce", 8, kStarted), 90)}), ProcessState::gone),
        with(rank_of(1, {entered_at(operation("all_reduce", 7, kStarted), 80)}), ProcessState::gone), rank_of(2)},
       {"rank 1 has died"},
       {"rank 0 has died"}},
      // The first rank that waits does so for a healthy one, which waits for the dead one.
      {{in_pair(rank_of(0, {in_pair(operation("all_gather", 3, kStarted))})), in_pair(operation_of(1, 8, kStarted)),
        with(operation_of(2, 7, kDone), ProcessState::gone)},
       {"rank 2 has not entered all_reduce dp #8 [4] float32: it is dead"},
       {"rank 1 has not entered", "rank 0 has not entered"}},
      // A rank that is stopped within the operation, and one that has no record.
      {{waits, with(rank_of(1, {operation("all_reduce", 8, kStarted)}), ProcessState::stopped)},
       {"it took too long", "  0     gave up ", "  1     stopped ", "  2     not started ",
        "rank 1 has entered all_reduce dp #8 [4] float32, and is stopped",
        "1 of the 3 ranks of group dp have not joined it"}},
      // Another operation, which came to its end on the rank that called it.
      {{waits, rank_of(1, {operation("broadcast", 8, kDone), operation("barrier", 9, kStarted)}),
        rank_of(2, {operation("all_reduce", 8, kStarted)})},
       {"rank 1 called broadcast dp #8 [4] float32 where rank 0 called all_reduce dp #8 [4] float32"}},
      {{waits, rank_of(1, {operation("all_reduce", 8, kStarted, 5)}),
        rank_of(2, {operation("all_reduce", 8, kStarted)})},
       {"rank 1 called all_reduce dp #8 [5] float32 where rank 0"}},
      // The rank that gave up first is further than the one that it waits for.
      {{lost(rank_of(0, {operation("barrier", 9, kFailed)}), "the barrier", 100),
        lost(rank_of(1, {operation("all_reduce", 8, kFailed)}), "the sum", 200), rank_of(2)},
       {"rank 1: the sum", "rank 2 has not entered all_reduce dp #8"}},
      {{waits, rank_of(1, {operation("all_reduce", 8, kStarted)}), rank_of(2, {operation("all_reduce", 8, kStarted)})},
       {"all ranks of the group have entered all_reduce dp #8 [4] float32 alike"}},
  };
  for (const auto& each : cases) {
    const auto text = report(each.ranks, {.world_size = 3});
    for (const auto& expected : each.expected)
      EXPECT_NE(text.find(expected), std::string::npos) << "expected: " << expected << "\n" << text;
    for (const auto& absent : each.absent)
      EXPECT_EQ(text.find(absent), std::string::npos) << "not expected: " << absent << "\n" << text;
  }
}

TEST(Report, ShowsTheRanksThatMatterOfMany) {
  std::vector<RankView> ranks;
  for (int rank = 0; rank < 100; ++rank) ranks.push_back(rank_of(rank));
  ranks[77].process = ProcessState::gone;
  const auto text = report(ranks, {.world_size = 100, .ended = {{77, "was killed by signal 9"}}});
  EXPECT_EQ(text.substr(0, text.find('\n')), "rank 77 was killed by signal 9");
  EXPECT_NE(text.find("\n  77    dead "), std::string::npos) << text;
  EXPECT_NE(text.find("and 68 more ranks"), std::string::npos) << text;
}

TEST(Report, SaysWhatTheLauncherKnowsOfAnotherHost) {
  const auto text =
      report({rank_of(0), rank_of(1)},
             {.world_size = 4, .all_on_this_host = false, .ended = {{3, "on host b was killed by signal 9"}}});
  EXPECT_EQ(text.substr(0, text.find('\n')), "rank 3 on host b was killed by signal 9");
  EXPECT_NE(text.find("\n  3     ?     dead "), std::string::npos) << text;
  EXPECT_NE(text.find("\n  2     ?     not reachable "), std::string::npos) << text;
}

TEST(Process, IsKnownByItsStart) {
  const auto start = process_start(getpid());
  EXPECT_GT(start, 0);
  EXPECT_EQ(process_state(getpid(), start), ProcessState::running);
  EXPECT_EQ(process_state(getpid(), start + 1), ProcessState::gone);  // another process with this number
}

}  // namespace
}  // namespace trireme::comm::flight
