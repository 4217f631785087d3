// The loader, over a data set whose samples contain their index.
#include "core/data/loader.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/data/rows.h"

namespace trireme::data {
namespace {

/// Sample i is a [2, 3] input full of i (plus the epoch when augmented), of label i % 5.
class IndexDataset : public Dataset {
 public:
  explicit IndexDataset(std::int64_t n) : n_(n) {}
  [[nodiscard]] std::int64_t size() const override { return n_; }
  std::optional<Sample> get(std::int64_t index, std::int64_t epoch, bool augment) override {
    ++reads;
    if (delay_us > 0)  // a different wait for each sample, so that workers overtake each other
      std::this_thread::sleep_for(std::chrono::microseconds(static_cast<std::int64_t>(
          static_cast<double>(delay_us) * random::uniform(1, static_cast<std::uint64_t>(index)))));
    if (broken.contains(index)) throw DataError("sample " + std::to_string(index) + " is broken");
    if (skipped_ids.contains(index)) return std::nullopt;
    const double value = static_cast<double>(index) + (augment ? 1000.0 * static_cast<double>(epoch) : 0.0);
    return Sample{{{"x", at::full({2, wider.contains(index) ? 4 : 3}, value, at::kFloat)}}, class_label(index % 5)};
  }
  std::set<std::int64_t> broken, skipped_ids, wider;
  std::int64_t delay_us = 0;
  std::atomic<int> reads = 0;

 private:
  std::int64_t n_;
};

/// Each sample is combined with another one, whose index it then has as a target.
class CombiningDataset : public IndexDataset, public RowSamples {
 public:
  using IndexDataset::IndexDataset;
  [[nodiscard]] std::vector<nn::SampleTensor> combined_targets() const override { return {{"other", at::kFloat}}; }
  [[nodiscard]] RowSamples* rows() override { return this; }
  [[nodiscard]] RowSpec row_spec(const std::vector<std::string>&, bool) const override {
    return {.inputs = {{"x", at::kFloat, {2, 3}}}, .targets = {{nn::kLabels, at::kLong}}};
  }
  std::optional<Sample> read(const std::vector<std::string>&, std::int64_t index, std::int64_t, bool augment) override {
    return get(index, /*epoch=*/0, augment);
  }
  [[nodiscard]] Sample transform_batch(Sample batch, bool combine) const override {
    if (!combine) return batch;
    const auto size = batch.inputs.front().size(0) - 1;
    const auto other = batch.inputs.front().narrow(0, 1, size).select(1, 0).select(1, 0).clone();
    for (auto* tensors : {&batch.inputs, &batch.targets})
      for (auto& [name, tensor] : *tensors) tensor = tensor.narrow(0, 0, size);
    batch.targets.set("other", other);
    return batch;
  }
};

std::vector<std::int64_t> ids_of(const Batch& batch) {
  const auto* ids = batch.sample_ids.const_data_ptr<std::int64_t>();
  return {ids, ids + batch.sample_ids.numel()};
}
std::vector<std::int64_t> ids_of(const StepBatch& step) {
  std::vector<std::int64_t> out;
  for (const auto& micro : step.micro)
    for (const auto id : ids_of(micro)) out.push_back(id);
  return out;
}
std::vector<StepBatch> rest_of_epoch(Loader& loader) {
  std::vector<StepBatch> out;
  while (auto step = loader.next()) out.push_back(std::move(*step));
  return out;
}

// The partner of a sample is the next one of the global batch, whatever the ranks and microbatches are; a sample that
// cannot be read is replaced in both roles.
TEST(Loader, CombinesEachSampleWithTheNextOfItsGlobalBatch) {
  const std::int64_t samples = 11, global = 4;
  for (const int ranks : {1, 2, 3, 4})
    for (const std::int64_t micro : {1, 4}) {
      std::map<std::int64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> of_step;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto set = std::make_shared<CombiningDataset>(samples);
        set->skipped_ids = {7};
        Loader loader(set, {.global_batch = global,
                            .micro_batch = micro,
                            .dp_rank = rank,
                            .dp_size = ranks,
                            .seed = 3,
                            .shuffle = true,
                            .augment = true,
                            .dtype = at::kDouble});
        loader.start_epoch(1);
        std::int64_t step = 0;
        for (const auto& batch : rest_of_epoch(loader)) {
          for (const auto& one : batch.micro)
            for (std::int64_t i = 0; i < one.size(); ++i)
              of_step[step].emplace_back(one.sample_ids[i].item<std::int64_t>(),
                                         one.targets["other"][i].item<double>());
          ++step;
        }
      }
      for (const auto& [step, pairs] : of_step)
        for (std::size_t i = 0; i < pairs.size(); ++i)
          EXPECT_EQ(pairs[i].second, pairs[(i + 1) % pairs.size()].first)
              << ranks << " ranks, microbatches of " << micro << ", step " << step << ", sample " << i;
    }
  // In evaluation nothing is combined.
  Loader loader(std::make_shared<CombiningDataset>(3), {.evaluation = true});
  loader.start_epoch(0);
  EXPECT_EQ(loader.next()->micro.front().targets.find("other"), nullptr);
}

TEST(Loader, BatchesDoNotDependOnTheWorkers) {
  std::vector<std::vector<std::int64_t>> reference;
  for (const std::int64_t workers : {1, 2, 5})
    for (const std::int64_t prefetch : {0, 1, 4}) {
      const auto set = std::make_shared<IndexDataset>(53);
      set->delay_us = 300;
      Loader loader(set, {.global_batch = 16,
                          .micro_batch = 3,
                          .dp_rank = 1,
                          .dp_size = 2,
                          .seed = 9,
                          .shuffle = true,
                          .augment = true,
                          .workers = workers,
                          .prefetch = prefetch,
                          .dtype = at::kDouble});
      EXPECT_EQ(loader.steps_per_epoch(), 4);
      EXPECT_EQ(loader.micro_per_step(), 3);
      loader.start_epoch(2);
      const auto steps = rest_of_epoch(loader);
      ASSERT_EQ(steps.size(), 4U);
      std::vector<std::vector<std::int64_t>> seen;
      for (std::size_t s = 0; s < steps.size(); ++s) {
        const auto& step = steps[s];
        seen.push_back(ids_of(step));
        EXPECT_EQ(step.global_samples, s == 3 ? 5 : 16);
        EXPECT_EQ(step.local_samples, s == 3 ? 2 : 8);
        EXPECT_GE(step.wait_seconds, 0);
        for (const auto& micro : step.micro) {
          EXPECT_EQ(micro.epoch, 2);
          EXPECT_EQ(micro.step, 8 + static_cast<std::int64_t>(s));
          EXPECT_EQ(micro.global_weight.item<double>(), static_cast<double>(step.global_samples));
          ASSERT_EQ(micro.inputs["x"].sizes(), (std::vector<std::int64_t>{micro.size(), 2, 3}));
          EXPECT_EQ(micro.inputs["x"].scalar_type(), at::kDouble);
          const auto ids = ids_of(micro);
          for (std::size_t i = 0; i < ids.size(); ++i) {
            const auto at = static_cast<std::int64_t>(i);
            EXPECT_TRUE(
                at::equal(micro.inputs["x"][at], at::full({2, 3}, static_cast<double>(ids[i] + 2000), at::kDouble)));
            EXPECT_EQ(micro.targets["labels"][at].item<std::int64_t>(), ids[i] % 5);
          }
        }
      }
      if (reference.empty()) reference = seen;
      EXPECT_EQ(seen, reference) << workers << " workers, prefetch " << prefetch;
    }
}

TEST(Loader, StartsAtAnyStepAsIfItHadRunThere) {
  const auto set = std::make_shared<IndexDataset>(41);
  const LoaderOptions options{.global_batch = 6, .micro_batch = 2, .seed = 4, .shuffle = true, .workers = 2};
  Loader through(set, options), jumping(set, options);
  for (const std::int64_t epoch : {0, 1}) {
    through.start_epoch(epoch);
    const auto all = rest_of_epoch(through);
    for (const std::int64_t from : {0, 1, 3, 6, 7}) {
      jumping.start_epoch(epoch, from);
      const auto some = rest_of_epoch(jumping);
      ASSERT_EQ(some.size(), all.size() - static_cast<std::size_t>(from));
      for (std::size_t i = 0; i < some.size(); ++i) {
        const auto& want = all[i + static_cast<std::size_t>(from)];
        EXPECT_EQ(ids_of(some[i]), ids_of(want));
        EXPECT_EQ(some[i].micro[0].step, want.micro[0].step);
      }
    }
  }
}

TEST(Loader, EvaluationSeesEverySampleOnceOverAllRanks) {
  for (const int ranks : {1, 3, 4})
    for (const std::int64_t n : {1, 7, 33}) {
      std::multiset<std::int64_t> seen;
      std::size_t micros = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        Loader loader(
            std::make_shared<IndexDataset>(n),
            {.global_batch = 8, .micro_batch = 2, .dp_rank = rank, .dp_size = ranks, .evaluation = true, .workers = 2});
        loader.start_epoch(0);
        std::size_t count = 0;
        for (const auto& step : rest_of_epoch(loader)) {
          count += step.micro.size();
          for (const auto id : ids_of(step)) seen.insert(id);
          for (const auto& micro : step.micro)
            EXPECT_EQ(micro.inputs["x"].sizes(), (std::vector<std::int64_t>{micro.size(), 2, 3})) << "also when empty";
        }
        if (rank == 0) micros = count;
        EXPECT_EQ(count, micros);
      }
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(n));
      EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), static_cast<std::size_t>(n));
    }
}

TEST(Loader, DropLastLeavesOutTheRaggedBatch) {
  Loader loader(std::make_shared<IndexDataset>(20), {.global_batch = 8, .micro_batch = 8, .drop_last = true});
  loader.start_epoch(0);
  EXPECT_EQ(rest_of_epoch(loader).size(), 2U);
  EXPECT_FALSE(loader.next().has_value());
}

TEST(Loader, ASkippedSampleIsReplacedInTrainingAndLeftOutInEvaluation) {
  const auto set = std::make_shared<IndexDataset>(10);
  set->skipped_ids = {3, 4, 9};
  Loader training(set, {.global_batch = 5, .micro_batch = 5});
  training.start_epoch(0);
  auto steps = rest_of_epoch(training);
  EXPECT_EQ(ids_of(steps.at(0)), (std::vector<std::int64_t>{0, 1, 2, 5, 5}));
  EXPECT_EQ(ids_of(steps.at(1)), (std::vector<std::int64_t>{5, 6, 7, 8, 0}));
  EXPECT_EQ(steps[0].local_samples, 5);
  Loader evaluation(set, {.global_batch = 5, .micro_batch = 5, .evaluation = true});
  evaluation.start_epoch(0);
  steps = rest_of_epoch(evaluation);
  EXPECT_EQ(ids_of(steps.at(0)), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(ids_of(steps.at(1)), (std::vector<std::int64_t>{5, 6, 7, 8}));
  EXPECT_EQ(steps[0].local_samples, 3);

  // A loader asks for the inputs' shape at once; here no sample can give it.
  const auto none = std::make_shared<IndexDataset>(2);
  none->skipped_ids = {0, 1};
  EXPECT_THROW(Loader(none, {.global_batch = 2, .micro_batch = 2}), DataError);
}

TEST(Loader, SamplesOfAMicrobatchHaveOneShapeAndInAPipelineAllDo) {
  const auto error_of = [](std::int64_t micro_batch, bool strict) -> std::string {
    auto data = std::make_shared<IndexDataset>(4);
    data->wider = {2};
    Loader loader(data, {.global_batch = 2, .micro_batch = micro_batch, .strict = strict});
    loader.start_epoch(0);
    try {
      while (loader.next())
        ;
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of(1, false), "");
  EXPECT_EQ(error_of(2, false).find("x has the shape [2, 4] in sample 2 and [2, 3] in sample 3; a batch"), 0U);
  EXPECT_EQ(error_of(1, true).find("x of sample 2 is [2, 4], but the data set's spec() says x float32 [2, 3]"), 0U);
}

/// Sample i has 1 + i % 4 tokens, with a mask and a label for each; a batch is padded.
class Sentences : public Dataset {
 public:
  [[nodiscard]] std::int64_t size() const override { return 7; }
  std::optional<Sample> get(std::int64_t index, std::int64_t, bool) override {
    const auto ids = at::full({1 + index % 4}, index, at::kLong);
    return Sample{{{"input_ids", ids}, {"mask", at::ones_like(ids)}}, {{nn::kLabels, ids + 1}}};
  }
  nn::DataSpec spec() override {
    return {.inputs = {{"input_ids", at::kLong, {-1}}, {"mask", at::kLong, {-1}}},
            .targets = {{nn::kLabels, at::kLong, {-1}}}};
  }
  [[nodiscard]] Sample collate(std::vector<Sample> samples, const std::vector<std::int64_t>& indices) override {
    return collate_padded(std::move(samples), indices, spec(), {.values = {{nn::kLabels, -100}}, .multiple = 2});
  }
};

// Ranks that need the mask alone pad too, because they must know the shapes of what the others read.
TEST(Loader, PadsSamplesOfDifferentLengths) {
  for (const bool all : {true, false}) {
    LoaderOptions options{.global_batch = 7, .micro_batch = 4, .strict = true};
    if (!all) options.needed = std::vector<std::string>{"mask"};
    Loader loader(std::make_shared<Sentences>(), options);
    loader.start_epoch(0);
    const auto step = *loader.next();
    ASSERT_EQ(step.micro.size(), 2U);
    const auto& first = step.micro[0];
    EXPECT_EQ(first.inputs["mask"].sum(1).const_data_ptr<std::int64_t>()[2], 3);
    EXPECT_TRUE(at::equal(first.inputs["input_ids"],
                          at::tensor({0, 0, 0, 0, 1, 1, 0, 0, 2, 2, 2, 0, 3, 3, 3, 3}).to(at::kLong).view({4, 4})));
    EXPECT_EQ(first.targets[nn::kLabels][1][2].item<std::int64_t>(), -100);
    EXPECT_EQ(step.micro[1].inputs["input_ids"].sizes(), (std::vector<std::int64_t>{3, 4}));  // 3 tokens, to 4
  }
}

/// Its batches have a mask that its spec() does not list.
class Undeclared final : public Sentences {
 public:
  nn::DataSpec spec() override {
    auto spec = Sentences::spec();
    spec.inputs.pop_back();
    return spec;
  }
};

TEST(Loader, ABatchHasTheTensorsOfTheSpec) {
  Loader loader(std::make_shared<Undeclared>(), {.global_batch = 7, .micro_batch = 4});
  loader.start_epoch(0);
  try {
    loader.next();
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("but the data set's spec() says input_ids int64 [-1]; override spec()"),
              std::string::npos)
        << error.what();
  }
}

TEST(Loader, RethrowsTheFirstErrorInOrderAfterTheStepsBeforeIt) {
  const auto set = std::make_shared<IndexDataset>(40);
  set->broken = {13, 14, 25};
  set->delay_us = 500;
  Loader loader(set, {.global_batch = 5, .micro_batch = 5, .workers = 4, .prefetch = 6});
  for (int round = 0; round < 3; ++round) {
    loader.start_epoch(0);
    EXPECT_EQ(ids_of(*loader.next()).front(), 0);
    EXPECT_EQ(ids_of(*loader.next()).front(), 5);
    for (int again = 0; again < 2; ++again) try {
        loader.next();
        FAIL() << "no error";
      } catch (const DataError& error) {
        EXPECT_STREQ(error.what(), "sample 13 is broken");
      }
  }
  loader.start_epoch(0, 6);
  EXPECT_EQ(ids_of(*loader.next()).front(), 30) << "an error does not outlive its epoch";
}

void begin_and_end_loaders(const std::shared_ptr<IndexDataset>& set) {
  set->delay_us = 2000;
  for (int i = 0; i < 50; ++i) {
    Loader loader(set, {.global_batch = 100, .micro_batch = 100, .workers = 4, .prefetch = 3});
    if (i % 3 > 0) loader.start_epoch(0);
    if (i % 3 > 1) {
      loader.start_epoch(1, 2);
      loader.start_epoch(0, 1);
    }
  }
}

TEST(LoaderTime, AnEndDoesNotWaitForSamples) {
  const auto begin = std::chrono::steady_clock::now();
  begin_and_end_loaders(std::make_shared<IndexDataset>(1000));
  // 300 samples of 1 ms are under way each time.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
}

TEST(Loader, EndsAndRestartsAtAnyTime) {
  const auto set = std::make_shared<IndexDataset>(1000);
  begin_and_end_loaders(set);
  Loader loader(set, {.global_batch = 10, .micro_batch = 10, .workers = 4, .prefetch = 3});
  for (std::int64_t i = 0; i < 20; ++i) {
    loader.start_epoch(0, i);
    EXPECT_EQ(ids_of(*loader.next()).front(), i * 10) << "a step from before the restart must not come through";
  }
}

TEST(Loader, PrefetchesUpToItsLimit) {
  const auto set = std::make_shared<IndexDataset>(100);
  Loader loader(set, {.global_batch = 4, .micro_batch = 4, .workers = 2, .prefetch = 3});
  set->reads = 0;
  loader.start_epoch(0);
  const auto reads_reach = [&](int wanted) {
    for (int i = 0; i < 12'000 && set->reads < wanted; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return set->reads.load();
  };
  EXPECT_EQ(reads_reach(12), 12);
  loader.next();
  EXPECT_EQ(reads_reach(16), 16);
}

TEST(LoaderTime, MeasuresTheWait) {
  const auto set = std::make_shared<IndexDataset>(8);
  set->delay_us = 40000;
  Loader loader(set, {.global_batch = 4, .micro_batch = 4, .workers = 1, .prefetch = 2});
  loader.start_epoch(0);
  const auto slow = loader.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const auto ready = loader.next();
  EXPECT_GT(slow->wait_seconds, 0.02);
  EXPECT_LT(ready->wait_seconds, slow->wait_seconds / 4);
}

TEST(Loader, RefusesInvalidOptions) {
  const auto message = [](std::int64_t samples, LoaderOptions options) -> std::string {
    try {
      Loader loader(std::make_shared<IndexDataset>(samples), options);
      return "no error";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(message(9, {.global_batch = 2, .dp_rank = 1, .dp_size = 3}),
            "train.global_batch: a global batch of 2 cannot be split over 3 data-parallel ranks; use at least 3, or at "
            "most 2 ranks");
  EXPECT_EQ(message(9, {.global_batch = 10, .drop_last = true}),
            "9 samples do not fill one global batch of 10, and train.drop_last = true drops incomplete batches; set it "
            "to false, or train.global_batch to at most 9");
  EXPECT_EQ(message(0, {}), "the data set holds no samples");
}

}  // namespace
}  // namespace trireme::data
