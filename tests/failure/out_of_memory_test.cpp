// Training whose memory runs out: what the message says, and that a retry with smaller microbatches trains the same.
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/command/metrics.h"
#include "tests/command/small_run.h"

namespace trireme::tests {
namespace {

TEST(Train, ReportsOutOfMemory) {
  const SmallRun run;  // more than the address space, so that no machine can allocate it
  expect_refusal(run.train(2, {"--set", "model.intermediate_size=4000000000000"}), 4, "out of memory");
}

TEST(Train, GoesOnWithSmallerMicrobatchesWhenMemoryRunsOut) {
  const std::string steps = "epochs = 2\nglobal_batch = 32\neval_batch = 1\n";
  const auto with = [](std::vector<std::string> sets) {
    std::vector<std::string> words{"--set", "run.threads=1",     "--set", "model.num_layers=4",
                                   "--set", "model.patch_size=4"};
    for (auto& set : sets) words.insert(words.end(), {"--set", std::move(set)});
    return words;
  };
  for (const int ranks : {1, 2}) {
    const auto half = "train.micro_batch=" + std::to_string(32 / ranks / 2);
    const SmallRun full(kLeaves, steps), small(kLeaves, steps), run(kLeaves, steps);
    const auto peak_of = [&](const SmallRun& of, std::vector<std::string> sets) {
      sets.emplace_back("run.memory_mb=1000");
      EXPECT_EQ(of.train(ranks, with(sets)).code, 0);
      const auto summary = json_of(of.dir() + "/summary.json");
      double peak = 0;
      for (const auto& rank : summary.at("ranks")) peak = std::max(peak, rank.at("peak_tensor_bytes").get<double>());
      return peak / (1 << 20);
    };
    const auto limit = "run.memory_mb=" + std::to_string((peak_of(full, {}) + peak_of(small, {half})) / 2);
    const auto stopped = run.train(ranks, with({limit}));
    expect_refusal(stopped, 4, "MiB are in use); held at most ");
    for (const char* part : {": weights ", ", activations", ": use a train.micro_batch below "})
      EXPECT_NE(stopped.err.find(part), std::string::npos) << part << " is missing: " << stopped.err;
    const auto result = run.train(ranks, with({limit, "train.on_oom=retry"}));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("retry     with " + half + ", because memory ran out"), std::string::npos) << result.out;
    EXPECT_TRUE(content_of(run.dir() + "/model/model.safetensors") ==
                content_of(small.dir() + "/model/model.safetensors"));
    // The first start is the user's, who has started it without the retry.
    EXPECT_TRUE(std::filesystem::exists(run.dir() + ".1") && !std::filesystem::exists(run.dir() + ".2"))
        << "the retry uses the folder again";
  }
}

// Memory runs out while labels are read, before there is a training that could advise a remedy.
TEST(Train, ReportsOutOfMemoryWhileLoading) {
  constexpr int kSamples = 1000;
  const auto header =
      "{\"labels\":{\"dtype\":\"I64\",\"shape\":[" + std::to_string(kSamples) + "],\"data_offsets\":[0," +
      std::to_string(8 * kSamples) + "]},\"pixel_values\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(kSamples) +
      ",3,8,8],\"data_offsets\":[" + std::to_string(8 * kSamples) + "," + std::to_string((8 + 192) * kSamples) + "]}}";
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 2; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  std::string samples((8 + 192) * kSamples, '\0');
  samples.front() = 1;  // the first label differs, so that there are two classes
  const TemporaryFolder data;
  for (const auto* split : {"train", "validation"})
    data.write(std::string(split) + ".safetensors", length + header + samples);
  const SmallRun run("[data]\nname = \"tensors\"\npath = \"" + data.path() + "\"\n");
  for (const int ranks : {1, 2})
    expect_only_refusal(run.train(ranks, {"--set", "run.memory_mb=0.005"}), 4, "out of memory (run.memory_mb: ");
}

}  // namespace
}  // namespace trireme::tests
