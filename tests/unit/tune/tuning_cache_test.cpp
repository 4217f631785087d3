#include "core/tune/tuning_cache.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "core/base/environment.h"
#include "core/base/files/files.h"

namespace trireme::tune {
namespace {

Tuning a_tuning() {
  return {.candidates = {{.name = "threads=2",
                          .seconds = 0.05,
                          .low = 0.049,
                          .high = 0.052,
                          .gain = 1.5,
                          .error = 1e-6,
                          .numbers = NumberClass::rounding,
                          .verdict = "chosen",
                          .chosen = true},
                         {.name = "norms=fused", .numbers = NumberClass::wrong, .verdict = "rejected: block 1"}},
          .chosen = {"threads=2"},
          .default_seconds = 0.075,
          .gain = 1.5,
          .default_error = 2e-6,
          .same_bits = false,
          .seconds = 3};
}

TuningKey a_key() { return {.of = {{"model", "vit"}}, .where = {{"libtorch", "2.11.0"}, {"threads", 1}}}; }

TEST(TuningCache, ReadsWhatItWrote) {
  const auto stored = parse_tuning(tuning_text(a_key(), a_tuning()), a_key());
  ASSERT_TRUE(stored.tuning);
  EXPECT_EQ(stored.tuning->json(), a_tuning().json());
  EXPECT_EQ(stored.tuning->line(), "threads=2; 1.50 x the default; equal up to rounding");
  EXPECT_EQ(stored.tuning->table(),
            "candidate       ms      10 to 90 %    gain    error  verdict\n"
            "default      75.00                          2.0e-06\n"
            "threads=2    50.00  49.00 to 52.00  1.50 x  1.0e-06  chosen\n"
            "norms=fused      -                                -  rejected: block 1");
}

TEST(TuningCache, SaysWhyATuningIsStale) {
  const auto text = tuning_text(a_key(), a_tuning());
  auto now = a_key();
  now.where["libtorch"] = "2.12.0";
  EXPECT_EQ(parse_tuning(text, now).stale, "libtorch: 2.11.0, now 2.12.0");
  EXPECT_FALSE(parse_tuning(text, now).tuning);
  now = a_key();
  now.of["batch"] = "8x3";
  EXPECT_EQ(parse_tuning(text, now).stale, "batch: unknown, now 8x3");
  EXPECT_EQ(parse_tuning("", now).stale, "");
  for (const auto& damaged : {std::string("{"), std::string("[1]"), std::string("{\"of\": 3, \"where\": null}"),
                              text.substr(0, text.size() / 2)})
    EXPECT_EQ(parse_tuning(damaged, a_key()).stale, "it is damaged") << damaged;
  auto wrong = text;
  wrong.replace(wrong.find("\"rounding\""), 10, "\"unknown_\"");
  EXPECT_EQ(parse_tuning(wrong, a_key()).stale, "it is damaged");
}

TEST(TuningCache, KeepsOneFileForEachModelAndLayout) {
  const auto folder = testing::TempDir() + "tuning_cache_test-" + std::to_string(getpid());
  std::filesystem::remove_all(folder);  // a killed process with this id may have left it
  const auto before = environment("XDG_CACHE_HOME");
  setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  EXPECT_EQ(read_cached_tuning(a_key()), "");
  EXPECT_TRUE(cache_tuning(a_key(), a_tuning()));
  auto elsewhere = a_key();
  elsewhere.where["threads"] = 2;
  EXPECT_EQ(parse_tuning(read_cached_tuning(elsewhere), elsewhere).stale, "threads: 1, now 2");
  auto other = a_key();
  other.of["model"] = "bert";
  EXPECT_EQ(read_cached_tuning(other), "");
  EXPECT_TRUE(cache_tuning(other, a_tuning()));
  EXPECT_TRUE(parse_tuning(read_cached_tuning(a_key()), a_key()).tuning);
  EXPECT_EQ(names_in(folder + "/trireme/tuning").size(), 2U);
  before.empty() ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", before.c_str(), 1);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trireme::tune
