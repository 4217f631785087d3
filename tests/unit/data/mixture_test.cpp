// Mixtures: each source or class has its part of every stretch of an epoch, and all samples their turns.
#include "core/data/mixture.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/data/loader.h"
#include "datasets/datasets.h"
#include "tests/unit/datasets/folder.h"

namespace trireme::data {
namespace {

using testing_tools::message_of;

/// Sample i of a source: its input is [source, i, the epoch for which it was augmented], its label that of a list.
class Labelled final : public Dataset {
 public:
  Labelled(int source, std::vector<std::int64_t> labels) : source_(source), labels_(std::move(labels)) {}
  std::int64_t size() const override { return std::ssize(labels_); }
  std::optional<Sample> get(std::int64_t index, std::int64_t epoch, bool) override {
    auto values = at::zeros({3}, at::kDouble);
    values[0] = source_;
    values[1] = index;
    values[2] = epoch;
    return Sample{{{"x", values}}, class_label(labels_.at(static_cast<std::size_t>(index)))};
  }

 private:
  int source_;
  std::vector<std::int64_t> labels_;
};

Datasets source_of(int number, std::int64_t samples, std::vector<std::string> classes = {}) {
  Datasets out;
  for (const auto split : {Split::train, Split::validation})
    out.of(split) = std::make_shared<Labelled>(number, std::vector<std::int64_t>(static_cast<std::size_t>(samples), 1));
  out.info.spec = out.train->spec();
  out.info.spec.classes = std::ssize(classes);
  out.info.spec.class_names = std::move(classes);
  out.info.source = "s" + std::to_string(number);
  return out;
}

struct Seen {
  std::int64_t source, sample, turn, label;
};
/// What an epoch holds, in the order in which a training gets it.
std::vector<Seen> epoch_of(const std::shared_ptr<Dataset>& set, std::int64_t epoch) {
  Loader loader(set, {.global_batch = 7, .micro_batch = 7, .shuffle = true, .augment = true, .dtype = at::kDouble});
  loader.start_epoch(epoch);
  std::vector<Seen> out;
  while (const auto step = loader.next())
    for (const auto& batch : step->micro)
      for (std::int64_t i = 0; i < batch.size(); ++i) {
        const auto value = [&](int of) { return static_cast<std::int64_t>(batch.inputs["x"][i][of].item<double>()); };
        out.push_back({value(0), value(1), value(2), batch.targets["labels"][i].item<std::int64_t>()});
      }
  return out;
}

/// Checks that each group has its quota of each stretch, and that its samples have their turns in the order of
/// `epochs`.
void expect_exact(const std::vector<std::vector<Seen>>& epochs, std::int64_t Seen::*group,
                  const std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>>& quotas_and_sizes) {
  std::map<std::int64_t, std::vector<Seen>> of_group;
  for (const auto& epoch : epochs) {
    std::map<std::int64_t, std::int64_t> count;
    for (std::size_t n = 0; n < epoch.size(); ++n) {
      ++count[epoch[n].*group];
      of_group[epoch[n].*group].push_back(epoch[n]);
      for (const auto& [each, quota] : quotas_and_sizes) {
        const auto part = static_cast<double>(quota.first) / static_cast<double>(epoch.size());
        const auto expected = part * static_cast<double>(n + 1);
        EXPECT_LE(std::abs(static_cast<double>(count[each]) - expected), 1 + part * std::ssize(quotas_and_sizes))
            << "group " << each << ", the first " << n + 1;
      }
    }
    for (const auto& [each, quota] : quotas_and_sizes) EXPECT_EQ(count[each], quota.first) << "group " << each;
  }
  for (const auto& [each, seen] : of_group) {
    const auto size = quotas_and_sizes.at(each).second;
    std::vector<std::int64_t> turn;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      EXPECT_EQ(seen[i].turn, static_cast<std::int64_t>(i) / size) << "group " << each << ", draw " << i;
      turn.push_back(seen[i].sample);
      if (std::ssize(turn) < size) continue;
      std::sort(turn.begin(), turn.end());
      EXPECT_EQ(std::unique(turn.begin(), turn.end()), turn.end()) << "group " << each << ", draw " << i;
      turn.clear();
    }
  }
}

TEST(Mixture, GivesEachSourceItsPartOfEveryStretch) {
  const auto set = mixed({source_of(0, 50), source_of(1, 30), source_of(2, 7)}, {1, 2, 1}, {.seed = 5}).train;
  std::vector<std::vector<Seen>> epochs;
  for (std::int64_t epoch = 0; epoch < 8; ++epoch) epochs.push_back(epoch_of(set, epoch));
  expect_exact(epochs, &Seen::source, {{0, {22, 50}}, {1, {43, 30}}, {2, {22, 7}}});  // of 87: 21.75, 43.5, 21.75
  const auto samples = [](const std::vector<Seen>& of) {
    std::vector<std::int64_t> out;
    for (const auto& each : of) out.push_back(100 * each.source + each.sample);
    return out;
  };
  EXPECT_EQ(samples(epoch_of(set, 3)), samples(epochs[3])) << "an epoch depends on its number alone";
  EXPECT_NE(samples(epochs[0]), samples(epochs[1]));
}

TEST(Mixture, EvensOutTheClasses) {
  std::vector<std::int64_t> labels(64, 0);
  std::fill(labels.begin() + 40, labels.begin() + 50, 1);
  std::fill(labels.begin() + 50, labels.begin() + 54, 2);
  std::fill(labels.begin() + 54, labels.begin() + 57, -100);
  const auto set = std::make_shared<Labelled>(0, labels);  // 47, 10 and 4 samples; 3 do not count
  EXPECT_EQ(classes_of_samples(*set), labels);
  struct Case {
    double balance;
    std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> quotas_and_sizes;
  };
  for (const auto& [balance, quotas_and_sizes] :
       std::vector<Case>{{0, {{0, {47, 47}}, {1, {10, 10}}, {2, {4, 4}}}},
                         {0.5, {{0, {35, 47}}, {1, {16, 10}}, {2, {10, 4}}}},  // of 61, as 6.86 : 3.16 : 2
                         {1, {{0, {21, 47}}, {1, {20, 10}}, {2, {20, 4}}}}}) {
    SCOPED_TRACE(balance);
    const auto even = balanced(set, labels, balance, 3);
    std::vector<std::vector<Seen>> epochs;
    for (std::int64_t epoch = 0; epoch < 5; ++epoch) epochs.push_back(epoch_of(even, epoch));
    expect_exact(epochs, &Seen::label, quotas_and_sizes);
  }
}

TEST(Mixture, EvaluatesAllSourcesByTheFirstOnesClasses) {
  const auto sets = mixed({source_of(0, 3, {"cat", "dog", "hen"}), source_of(1, 2, {"cat", "hen"})}, {1, 4}, {});
  const auto& validation = sets.validation;
  ASSERT_EQ(validation->size(), 5);
  for (std::int64_t i = 0; i < 5; ++i) {
    const auto sample = *validation->get(i, 2, false);
    EXPECT_EQ(sample.inputs["x"][0].item<double>(), i < 3 ? 0 : 1) << i;
    EXPECT_EQ(sample.inputs["x"][1].item<double>(), i < 3 ? i : i - 3) << i;
    EXPECT_EQ(sample.targets["labels"].item<std::int64_t>(), i < 3 ? 1 : 2) << i;
  }
  EXPECT_EQ(sets.test, nullptr);
  EXPECT_EQ(sets.info.source, "s0 + s1");
  EXPECT_EQ(sets.info.digest, " by 1 +  by 4");
}

// Images are read in rows, and mixed with others, as in their own data sets.
TEST(Mixture, OfImagesHasTheirPixels) {
  const auto leaves = [](std::int64_t seed, bool flip, std::vector<double> mean = {0.5, 0.5, 0.5}) {
    datasets::LeavesOptions options;
    options.images = 30;
    options.leaf_seed = seed;
    options.image_size = 16;
    options.flip = flip;
    options.mixup = 1;
    options.mean = std::move(mean);
    auto source = datasets::leaves(options);
    return open(source, {.log = Log(1)});
  };
  const auto a = leaves(1, true), b = leaves(2, false);
  const auto set = mixed({a, b}, {1, 1}, {.seed = 9}).train;
  ASSERT_NE(set->rows(), nullptr);
  std::map<double, int> sums;  // of all images of an epoch
  const auto add = [&](const Sample& sample, int by) {
    sums[sample.inputs["pixel_values"].to(at::kDouble).sum().item<double>()] += by;
  };
  for (std::int64_t i = 0; i < set->size(); ++i) add(*set->get(i, 0, true), 1);
  for (const auto& part : {a.train, b.train})
    for (std::int64_t i = 0; i < part->size(); ++i) add(*part->get(i, 0, true), -1);
  for (const auto& [sum, count] : sums) EXPECT_EQ(count, 0) << sum;
  EXPECT_EQ(
      message_of<ConfigError>([&] {
        mixed({a, leaves(2, false, {0, 0, 0})}, {1, 1}, {});
      }),
      "leaves: is prepared otherwise (preprocessor_config.json differs), so its samples cannot be mixed with those "
      "of leaves; give both the same keys");
}

TEST(Mixture, RefusesSourcesThatDoNotFitTogether) {
  auto wide = source_of(1, 3), other_words = source_of(1, 3);
  wide.info.spec.inputs.front().shape = {4};
  other_words.info.spec.vocabulary = 7;
  struct Case {
    Datasets first, other;
    double weight;
    std::string message;
  };
  const std::vector<Case> cases{
      {source_of(0, 3), wide, 1,
       "s1: has x float64 [4], not x float64 [3], so its samples cannot be mixed with those of s0; give both the same "
       "keys"},
      {source_of(0, 3), other_words, 1,
       "s1: has another tokenizer, so its samples cannot be mixed with those of s0; give both the same keys"},
      {source_of(0, 3, {"cat", "dog"}), source_of(1, 3, {"cat", "hen"}), 1,
       "s1: has the classes cat, hen, but s0, which says the classes, has cat, dog"},
      {source_of(0, 3), source_of(1, 3), 1e-6, "s1: its weight of 1e-06 gives it no sample of an epoch; raise it"}};
  for (const auto& [first, other, weight, message] : cases)
    EXPECT_EQ(message_of<ConfigError>([&, w = weight] { mixed({first, other}, {1, w}, {}); }), message);
}

}  // namespace
}  // namespace trireme::data
