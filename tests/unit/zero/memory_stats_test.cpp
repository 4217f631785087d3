// Where chunks live under placement_policy = "auto", by tables of measurements.
#include "zero/gemini/memory_stats.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/base/error.h"

namespace trireme::zero {
namespace {

std::string letters(const std::vector<Residency>& residencies) {
  std::string out;  // a letter for each chunk: all on the device, slice alone, nothing
  for (const auto& residency : residencies) out += residency.offload_part ? 'n' : residency.offload_master ? 's' : 'a';
  return out;
}

// Three chunks of 10 bytes a slice and 30 of state; a pass needs chunk 2 first and chunk 0 last.
const MemoryStats kStats{.periods = {{.other = 5, .gathered = 20}, {.other = 40, .gathered = 20}, {30, 20}},
                         .update = 10,
                         .state = {30, 30, 30},
                         .first_use = {2, 1, 0}};

TEST(MemoryStats, TheFullestPeriodDecides) {
  struct Row {
    std::int64_t room;
    double margin;
    const char* residencies;
  };
  // Beside slices, 60 bytes are needed in the second period; all slices need 30.
  for (const auto& [room, margin, residencies] :
       {Row{60, 1, "nnn"}, Row{0, 1, "nnn"}, Row{69, 1, "nnn"}, Row{70, 1, "nns"}, Row{80, 1, "nss"}, Row{90, 1, "sss"},
        Row{120, 1, "ass"}, Row{120, 0.9, "sss"}, Row{150, 0.5, "ass"}, Row{180, 1, "aaa"}, Row{180, 0, "sss"}}) {
    SCOPED_TRACE(room);
    EXPECT_EQ(letters(plan_residency(kStats, {10, 10, 10}, room, margin)), residencies);
  }
  auto late = kStats;  // the update may be the fullest moment
  late.update = 61;
  EXPECT_EQ(letters(plan_residency(late, {10, 10, 10}, 90, 1)), "nss");
}

TEST(MemoryStats, CarefulResidencyBeforeMeasuring) {
  EXPECT_EQ(letters(careful_residency({10, 10, 10}, 20)), "ssn");
  EXPECT_EQ(letters(careful_residency({10, 10, 10}, 0)), "nnn");
}

/// A file that no other test program has.
std::string path_of(const std::string& name) {
  return testing::TempDir() + name + "-" + std::to_string(getpid()) + ".json";
}

TEST(MemoryStats, RoundTripThroughAFile) {
  const auto path = path_of("stats");
  const RunKeys run{{"model.dropout", "0.0"}, {"ranks", "2"}};
  kStats.write(path, run);
  const auto got = MemoryStats::read(path, run, 3, "plugin.gemini");
  ASSERT_TRUE(got);
  EXPECT_EQ(got->state, kStats.state);
  EXPECT_EQ(got->first_use, kStats.first_use);
  EXPECT_EQ(got->update, kStats.update);
  ASSERT_EQ(got->periods.size(), 3U);
  EXPECT_EQ(got->periods[1].other, 40);
  EXPECT_EQ(got->periods[1].gathered, 20);
  EXPECT_THROW(MemoryStats::read(path, run, 4, "plugin.gemini"), ConfigError);
  auto absurd = kStats;
  absurd.first_use[0] = -1;
  absurd.write(path + ".absurd", {});
  EXPECT_THROW(MemoryStats::read(path + ".absurd", {}, 3, "plugin.gemini"), ConfigError);
  EXPECT_FALSE(MemoryStats::read(path + ".none", {}, 3, "plugin.gemini"));
  for (const auto& file : {path, path + ".absurd"}) std::filesystem::remove(file);
}

// The message has each key that differs with both values, and no other key.
TEST(MemoryStats, OfAnotherRunAreRefused) {
  const auto path = path_of("stats-of-another");
  kStats.write(path, {{"model.dropout", "0.0"}, {"ranks", "2"}, {"train.micro_batch", "4"}});
  try {
    MemoryStats::read(path, {{"model.dropout", "0.1"}, {"model.num_layers", "3"}, {"ranks", "2"}}, 3, "plugin.gemini");
    ADD_FAILURE() << "was read";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "plugin.gemini.memstats: \"" + path +
                  "\" was measured in another run: model.dropout = 0.1 (in the file: 0.0), model.num_layers = 3 (in "
                  "the file: "
                  "unset), train.micro_batch = unset (in the file: 4); remove the file, or name another");
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace trireme::zero
