// Where the time of a run goes, by the lines of its metrics.jsonl.
#include "core/resume/run_times.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace trireme::train {
namespace {

using Json = nlohmann::json;

Json step(double time, double seconds, double data_wait = 0) {
  return {{"kind", "step"}, {"time", time}, {"samples", 8}, {"samples_per_s", 8 / seconds}, {"data_wait", data_wait}};
}
Json event(const char* name, double time, Json more = Json::object()) {
  more.update({{"kind", "event"}, {"event", name}, {"time", time}});
  return more;
}
Json start(double time, double start_up, double idle = 0, double lost = 0) {
  return event("start", time, {{"start_up_s", start_up}, {"idle_s", idle}, {"lost_s", lost}});
}
Json evaluation(double time, double seconds) { return {{"kind", "eval"}, {"time", time}, {"seconds", seconds}}; }

TEST(RunTimes, AreThePartsOfTheWallTimeOverAllStarts) {
  const struct {
    const char* what;
    std::vector<Json> lines;
    double end;  // 0: the last line's
    RunTimes expected;
    const char* text;
  } rows[] = {
      {"nothing", {}, 0, {}, ""},
      {"steps, one of which waits for data, an evaluation, a save and the export",
       {start(102, 2), step(106, 4), step(110, 4, 0.25), evaluation(112, 2), event("save", 113, {{"held_s", 1.0}})},
       120,
       {.training = 7, .data = 1, .start_up = 2, .evaluation = 2, .saving = 1, .begin = 100, .end = 120, .starts = 1},
       "35.0 % of 0:00:20 trained; data 5.0 %, start-up 10.0 %, evaluation 10.0 %, saving 5.0 %, other 35.0 %"},
      {"a start that a death has ended, after 6 s of which 4 are done again, and one 10 s later",
       {start(101, 1), step(103, 2), start(120, 3, 10, 4), step(122, 2)},
       0,
       {.training = 4, .start_up = 4, .lost = 4, .idle = 10, .begin = 100, .end = 122, .starts = 2},
       "18.2 % of 0:00:22 trained; start-up 18.2 %, lost 18.2 %, idle 45.5 %"},
      {"a start of which nothing is left",
       {start(120, 1, 9, 10), step(140, 20)},
       0,
       {.training = 20, .start_up = 1, .lost = 10, .idle = 9, .begin = 100, .end = 140, .starts = 1},
       "50.0 % of 0:00:40 trained; start-up 2.5 %, lost 25.0 %, idle 22.5 %"},
      {"a rollback",
       {start(100, 0), step(110, 10), event("rollback", 120, {{"lost_s", 10.0}})},
       0,
       {.training = 10, .lost = 10, .begin = 100, .end = 120, .starts = 1},
       "50.0 % of 0:00:20 trained; lost 50.0 %"},
      {"steps that the host has launched, and waits for",
       {start(100, 0), step(101, 1), event("wait", 104, {{"seconds", 3.0}})},
       0,
       {.training = 4, .begin = 100, .end = 104, .starts = 1},
       "100.0 % of 0:00:04 trained"},
      {"the file of a version without starts, with which this version goes on",
       {step(100, 5), start(120, 2, 18)},
       0,
       {.training = 5, .start_up = 2, .idle = 18, .begin = 95, .end = 120, .starts = 1},
       "20.0 % of 0:00:25 trained; start-up 8.0 %, idle 72.0 %"},
      {"the file of a version without starts, with lines that others wrote",
       {step(100, 5), Json::array(), Json("text"), {{"kind", 1}, {"time", "now"}}, step(110, 10)},
       0,
       {.training = 15, .begin = 95, .end = 110},
       "100.0 % of 0:00:15 trained"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.what);
    RunTimes times;
    for (const auto& line : row.lines) times.add(line);
    if (row.end > 0) times.end = row.end;
    EXPECT_EQ(to_json(times), to_json(row.expected));
    EXPECT_EQ(times.text(), row.text);
    double sum = 0;
    for (const auto& [name, seconds] : times.parts()) sum += seconds;
    if (times.starts > 0) {
      EXPECT_DOUBLE_EQ(sum, times.wall());
    }
  }
}

TEST(RunTimes, LostIsWhatALineHasTaken) {
  EXPECT_EQ(lost_with(step(100, 2, 0.5)), 2);
  EXPECT_EQ(lost_with(evaluation(100, 3)), 3);
  EXPECT_EQ(lost_with(event("save", 100, {{"held_s", 4.0}})), 4);
  EXPECT_EQ(lost_with(event("rollback", 100, {{"lost_s", 5.0}})), 5);
  EXPECT_EQ(lost_with(event("skipped", 100)), 0);
}

}  // namespace
}  // namespace trireme::train
