// `trireme train --timeline` writes a trace of every rank and prints a picture of the pipeline.
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/command/small_run.h"

namespace trireme::tests {
namespace {

nlohmann::json timeline_of(const SmallRun& run) {
  std::ifstream file(run.dir() + "/timeline.json");
  return nlohmann::json::parse(file).at("traceEvents");
}

/// The number of a rank's spans whose names begin with `begins`.
int count(const nlohmann::json& events, int rank, const std::string& begins) {
  int n = 0;
  for (const auto& event : events)
    n += event.at("ph") == "X" && event.at("pid") == rank && event.at("name").get<std::string>().rfind(begins, 0) == 0;
  return n;
}

TEST(Timeline, ShowsWhatEachRankOfAPipelineDid) {
  const SmallRun run;
  const auto result = run.train(
      2, {"--timeline", "--set", "parallel.pp=2", "--set", "train.micro_batch=2", "--set", "parallel.schedule=zb_h1"});
  ASSERT_EQ(result.code, 0) << result.err;
  // Not the letters: in a step that a busy machine prolonged, several actions fall into one column.
  for (const char* part :
       {"zb_h1: 2 ranks, 4 microbatches; step", "rank 0  ", "rank 1  ", "measured: ranks are idle", "timeline.json"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  const auto events = timeline_of(run);
  for (const int rank : {0, 1}) {
    for (const char* part : {"forward of", "backward_input of", "backward_weight of"})
      EXPECT_EQ(count(events, rank, part), 3 * 4) << part;
    EXPECT_EQ(count(events, rank, "send "), 3 * 4);
    EXPECT_EQ(count(events, rank, "optimizer"), 3);
    EXPECT_GE(count(events, rank, "all_reduce "), 3);
  }
  // The ranks' spans are on one clock: the microbatch enters the first stage before the second.
  double first = 0, second = 0;
  for (const auto& event : events) {
    if (event.at("name") == "forward of microbatch 0, stage 0" && first == 0) first = event.at("ts");
    if (event.at("name") == "forward of microbatch 0, stage 1" && second == 0) second = event.at("ts");
  }
  EXPECT_LT(first, second);
}

TEST(Timeline, HasThePassesOfOtherPlugins) {
  const SmallRun run;
  const auto result = run.train(2, {"--timeline", "--set", "train.micro_batch=2"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto events = timeline_of(run);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(count(events, rank, "forward "), 3 * 2);
    EXPECT_EQ(count(events, rank, "backward "), 3 * 2);
  }
}

}  // namespace
}  // namespace trireme::tests
