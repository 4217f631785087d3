// Shards: the files that a pattern names, and the order of an epoch that is read shard by shard.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "datasets/shard_pattern.h"
#include "datasets/tar_index.h"
#include "tests/unit/datasets/folder.h"

namespace trireme::data {
namespace {

using testing_tools::Folder;
using testing_tools::message_of;

TEST(Shards, AnEpochIsShuffledByShardAndBuffer) {
  const std::vector<std::int64_t> sizes{50, 1, 80, 33, 120};
  const std::int64_t samples = 284;
  for (const std::int64_t buffer : {1, 2, 20, 283, 1000}) {
    const auto order = datasets::shard_order(sizes, buffer, 7, 3);
    EXPECT_EQ(order, datasets::shard_order(sizes, buffer, 7, 3));
    EXPECT_NE(order, datasets::shard_order(sizes, buffer, 7, 4)) << "another epoch";
    EXPECT_NE(order, datasets::shard_order(sizes, buffer, 8, 3)) << "another seed";
    ASSERT_EQ(std::set<std::int64_t>(order.begin(), order.end()).size(), 284U);
    EXPECT_EQ(order.size(), 284U);
    EXPECT_EQ(*std::max_element(order.begin(), order.end()), samples - 1);

    // With a buffer of one, the order is that of the shards, against which the others are measured.
    const auto stream = datasets::shard_order(sizes, 1, 7, 3);
    std::vector<std::int64_t> entered(284);
    for (std::int64_t at = 0; at < samples; ++at)
      entered[static_cast<std::size_t>(stream[static_cast<std::size_t>(at)])] = at;
    std::int64_t ahead = 0, moved = 0;
    for (std::int64_t at = 0; at < samples; ++at) {
      const auto from = entered[static_cast<std::size_t>(order[static_cast<std::size_t>(at)])];
      ahead = std::max(ahead, from - at);
      moved += from != at;
    }
    EXPECT_LT(ahead, buffer);
    EXPECT_GE(ahead, buffer == 1 ? 0 : std::min<std::int64_t>(buffer, samples) / 2);
    EXPECT_GE(moved, buffer == 1 ? 0 : samples / 3);
  }
  const auto stream = datasets::shard_order(sizes, 1, 7, 3);
  int jumps = 0;
  for (std::size_t i = 1; i < stream.size(); ++i) jumps += stream[i] != stream[i - 1] + 1;
  EXPECT_LE(jumps, 4) << "each shard is read in one piece";
  std::set<std::int64_t> first;
  for (std::int64_t epoch = 0; epoch < 40; ++epoch) first.insert(datasets::shard_order(sizes, 1, 7, epoch).front());
  EXPECT_EQ(first, (std::set<std::int64_t>{0, 50, 51, 131, 164})) << "each shard comes first in some epoch";
}

TEST(Shards, AreNamedByPatterns) {
  const Folder folder;
  for (const auto* name : {"t-8.tar", "t-9.tar", "t-10.tar", "t-08.tar", "u/b.tar", "u/a.tar", "u/c.txt", "{x}.tar",
                           "u/.c.tar", ".u/d.tar", "u/e.tar/f.tar"})
    folder.write(name, "");
  std::filesystem::create_directories(folder.path("empty"));
  const struct {
    const char* pattern;
    std::vector<const char*> files;
  } cases[] = {{"t-9.tar", {"t-9.tar"}},
               {"t-{8..10}.tar", {"t-8.tar", "t-9.tar", "t-10.tar"}},
               {"t-{08..08}.tar", {"t-08.tar"}},
               {"{u/b,t-8}.tar", {"u/b.tar", "t-8.tar"}},
               {"{t-?,u/[a-d]}.tar", {"t-8.tar", "t-9.tar", "u/a.tar", "u/b.tar"}},
               {"t-*.tar", {"t-08.tar", "t-10.tar", "t-8.tar", "t-9.tar"}},
               {"u", {"u/a.tar", "u/b.tar"}},
               {"*/[a-d]*.tar", {"u/a.tar", "u/b.tar"}},
               {"u/.c.tar", {"u/.c.tar"}},
               {".u", {".u/d.tar"}},
               {"{x}.tar", {"{x}.tar"}}};
  for (const auto& c : cases) {
    std::vector<std::string> want;
    for (const auto* file : c.files) want.push_back(folder.path(file));
    EXPECT_EQ(datasets::expand_shards(folder.path(c.pattern)), want) << c.pattern;
  }
  const auto says = [&](const char* pattern) {
    return message_of([&] { datasets::expand_shards(folder.path(pattern)); });
  };
  const auto at = folder.path() + "/";
  EXPECT_EQ(says("t-{7..9}.tar"),
            fmt::format("{0}t-7.tar: no such file (1 of the 3 that {0}t-{{7..9}}.tar names)", at));
  const std::string remedy = "; write train-{0000..0146}.tar, train-*.tar, or a folder";
  EXPECT_EQ(says("v-*.tar"), at + "v-*.tar: no file matches" + remedy);
  EXPECT_EQ(says("t-{9..8}.tar"), at + "t-{9..8}.tar: {9..8} is no range of numbers" + remedy);
  EXPECT_EQ(says("t-{8,8}.tar"), fmt::format("{0}t-{{8,8}}.tar: names {0}t-8.tar twice", at) + remedy);
  EXPECT_EQ(says("t-{8.tar"), at + "t-{8.tar: each { needs a }, and braces cannot be nested" + remedy);
  EXPECT_EQ(says("empty"), at + "empty: no *.tar in this folder" + remedy);

  using Names = std::vector<std::string>;
  EXPECT_EQ(datasets::expand_shards("pipe:curl 'h/{a,b}-{08..09}?x' | awk '{print}' ${V}"),
            (Names{"pipe:curl 'h/a-08?x' | awk '{print}' ${V}", "pipe:curl 'h/a-09?x' | awk '{print}' ${V}",
                   "pipe:curl 'h/b-08?x' | awk '{print}' ${V}", "pipe:curl 'h/b-09?x' | awk '{print}' ${V}"}));
  for (const auto& [command, what] :
       {std::pair<std::string, std::string>{"pipe:cat *.tar", "nobody can list what * matches in a command"},
        {"pipe:cat {3..2}", "{3..2} is no range of numbers"},
        {"pipe:cat {3,3}", "names pipe:cat 3 twice"}})
    EXPECT_EQ(message_of([&] { datasets::expand_shards(command); }),
              command + ": " + what + "; write pipe:COMMAND train-{0000..0146}.tar");
}

}  // namespace
}  // namespace trireme::data
