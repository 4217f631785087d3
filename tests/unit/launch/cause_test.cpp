// Which of several failures is told as the cause of a failed run.
#include "core/launch/cause.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <string>
#include <vector>

namespace trireme::ranks {
namespace {

RankState running() { return {}; }
RankState exited(int code) { return {.status = W_EXITCODE(code, 0)}; }
RankState killed(int signal) { return {.status = W_EXITCODE(0, signal)}; }
/// Has reported its error; `state`: what its process does.
RankState failed(int code, RankState state = running()) {
  state.report.failure = Failure{.code = code, .message = "text"};
  return state;
}
/// The same in a process that the rank, a shell, has started.
RankState below_shell(int code, RankState state = running()) {
  state.process = 10;
  state.report.failure = Failure{.code = code, .message = "text", .process = 11};
  return state;
}

TEST(Cause, IsTheFailureThatExplainsTheOthers) {
  struct Case {
    std::string what;
    std::vector<RankState> ranks;
    int rank;  ///< -1: no failure
    End end;
    int code;
  };
  const std::vector<Case> cases{
      {"all run", {running(), running()}, -1, {}, 0},
      {"all are done", {exited(0), exited(0)}, -1, {}, 0},
      {"one exits", {running(), exited(3)}, 1, End::exited, 3},
      {"one is killed", {running(), killed(SIGKILL)}, 1, End::killed, 137},
      {"a report before the end", {running(), failed(3)}, 1, End::reported, 3},
      {"the report counts, not how the process ended", {failed(3, killed(SIGABRT))}, 0, End::reported, 3},
      {"its shell goes on", {below_shell(3), running()}, -1, {}, 0},
      {"its shell has dealt with it", {below_shell(3, exited(0)), running()}, -1, {}, 0},
      {"its shell has not", {below_shell(3, exited(3)), running()}, 0, End::reported, 3},
      {"its shell has a code of its own", {below_shell(3, exited(7)), running()}, 0, End::reported, 7},
      {"its shell is killed later", {below_shell(3, killed(SIGKILL)), running()}, 0, End::killed, 137},
      {"of several the lowest", {running(), failed(3), failed(4)}, 1, End::reported, 3},
      {"a loss follows from an error", {failed(5), failed(3)}, 1, End::reported, 3},
      {"and from a death", {failed(5), killed(SIGKILL)}, 1, End::killed, 137},
      {"and from an exit", {failed(5), exited(1)}, 1, End::exited, 1},
      {"a loss alone", {running(), failed(5)}, 1, End::lost_peer, 5},
      {"a program without reports that loses a peer", {exited(5), exited(4)}, 1, End::exited, 4},
      {"an exit follows from a death", {exited(1), killed(SIGSEGV)}, 1, End::killed, 139},
      {"an exit says less than a report", {exited(1), failed(3)}, 1, End::reported, 3},
      {"all have the same error", {failed(2), failed(2)}, 0, End::reported, 2},
  };
  for (auto [what, ranks, rank, end, code] : cases) {
    for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i].rank = static_cast<int>(i);
    const auto cause = cause_of(ranks);
    ASSERT_EQ(cause.has_value(), rank >= 0) << what;
    if (!cause) continue;
    EXPECT_EQ(cause->rank, rank) << what;
    EXPECT_EQ(cause->end, end) << what;
    EXPECT_EQ(cause->code, code) << what;
  }
}

// Then the ranks that still run are not waited for.
TEST(Cause, IsClearWhenOtherReportsExplainNoMore) {
  auto alike = failed(2), meets_nobody = failed(5);
  alike.report.failure->of_all = meets_nobody.report.failure->of_all = true;
  EXPECT_TRUE(cause_of({alike, running()})->is_clear);
  EXPECT_TRUE(cause_of({running(), killed(SIGKILL)})->is_clear);
  EXPECT_FALSE(cause_of({failed(3), running()})->is_clear);
  EXPECT_FALSE(cause_of({exited(3), running()})->is_clear);
  EXPECT_FALSE(cause_of({meets_nobody, running()})->is_clear);
}

TEST(Cause, NamesTheRankWhoseErrorIsItsOwn) {
  EXPECT_EQ(message_of(0, {.message = "text"}), "text");
  EXPECT_EQ(message_of(2, {.message = "text"}), "rank 2: text");
  EXPECT_EQ(message_of(2, {.message = "text", .of_all = true}), "text");
}

}  // namespace
}  // namespace trireme::ranks
