// Differences and statistics of stored tensors, against values that are known.
#include "core/checkpoint/weights/tensor_compare.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/train_state.h"
#include "tests/unit/checkpoint/folder.h"

namespace trireme::checkpoint {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor doubles(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }

TEST(TensorCompare, FindsEachDifferenceAndSortsThem) {
  const TestFolder folder;
  auto large = at::zeros({(1 << 20) + 7}), changed = large.clone();
  changed[(1 << 20) + 6] = 0.5;  // beyond the first chunk
  write_safetensors(folder / "a", {{"same", at::arange(5)},
                                   {"gone", at::zeros({2})},
                                   {"shape", at::zeros({2, 3})},
                                   {"large", large},
                                   {"values", doubles({1, -4, 0})},
                                   {"nan", doubles({1, kNan, kNan})},
                                   {"zero", doubles({0.0})},
                                   {"dtype", at::full({2}, 1.0 / 3)}});
  write_safetensors(folder / "b", {{"same", at::arange(5)},
                                   {"new", at::zeros({2})},
                                   {"shape", at::zeros({3, 2})},
                                   {"large", changed},
                                   {"values", doubles({1, -2, 1e-3})},
                                   {"nan", doubles({1, kNan, 7})},
                                   {"zero", doubles({-0.0})},
                                   {"dtype", at::full({2}, 1.0 / 3).to(at::kBFloat16)}});
  const auto found = compare(TensorList(folder / "a"), TensorList(folder / "b"));
  EXPECT_EQ(found.equal, 1);
  const struct {
    const char* name;
    Difference kind;
    std::int64_t elements;
    double max_abs, max_rel;
  } expected[] = {
      {"gone", Difference::only_in_first, 0, 0, 0},
      {"new", Difference::only_in_second, 0, 0, 0},
      {"shape", Difference::shape, 0, 0, 0},
      {"nan", Difference::values, 1, kInfinite, kInfinite},
      {"values", Difference::values, 2, 2, 1},
      {"large", Difference::values, 1, 0.5, 1},
      {"dtype", Difference::values, 2, 0.33398437500 - 1.0F / 3, (0.33398437500 - 1.0F / 3) / 0.33398437500},
      {"zero", Difference::values, 0, 0, 0},  // by a bit
  };
  ASSERT_EQ(found.differences.size(), std::size(expected));
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    const auto& row = found.differences[i];
    SCOPED_TRACE(expected[i].name);
    EXPECT_EQ(row.name, expected[i].name);
    EXPECT_EQ(row.kind, expected[i].kind);
    EXPECT_EQ(row.elements, expected[i].elements);
    EXPECT_DOUBLE_EQ(row.max_abs, expected[i].max_abs);
    EXPECT_DOUBLE_EQ(row.max_rel, expected[i].max_rel);
    EXPECT_EQ(row.other_dtype(), row.name == "dtype");
  }
  EXPECT_TRUE(compare(TensorList(folder / "a"), TensorList(folder / "a")).differences.empty());
}

/// Slices of other layouts, and layouts of the memory and of exported models, are the same tensors.
TEST(TensorCompare, DoesNotDependOnHowTensorsAreStored) {
  const TestFolder run;
  const auto full = at::arange(12, at::kFloat).view({3, 4});
  CheckpointContents contents;
  contents.record.progress.global_step = 1;
  auto whole = shard::Placement::whole("w", {3, 4});
  whole.stored_transposed = true;
  contents.weights.push_back({whole, full});
  contents.optimizer.push_back({shard::Placement::whole("w.exp_avg", {3, 4}), full * 2});
  contents.average = contents.weights;
  contents.average->front().value = full + 1;
  const auto folder = save_checkpoint(run.path(), contents, 1, alone());
  write_safetensors(run / "weights", {{"w", full.t().contiguous()}});
  write_safetensors(run / "average", {{"w", (full + 1).t().contiguous()}});
  const TensorList evaluated(folder, Groups::weights), all(run.path());
  EXPECT_TRUE(compare(evaluated, TensorList(run / "average")).differences.empty());
  EXPECT_EQ(compare(evaluated, TensorList(run / "weights")).differences.at(0).max_abs, 1);
  EXPECT_EQ(all.path(), folder);
  EXPECT_EQ(all.files(), 3U);
  ASSERT_EQ(all.tensors().size(), 3U);
  EXPECT_EQ(all.tensors().at("optimizer: w.exp_avg").read()[2][3].item<float>(), 22);
  EXPECT_EQ(all.tensors().at("w").info.shape, (std::vector<std::int64_t>{4, 3}));
}

TEST(TensorStats, AreThoseOfTheFiniteValues) {
  const struct {
    at::Tensor values;
    double min, max, mean;
    std::int64_t nonfinite;
  } cases[] = {
      {doubles({1, kNan, -3, kInfinite, 5}), -3, 5, 1, 2},
      {doubles({kNan, -kInfinite}), 0, 0, 0, 2},
      {at::zeros({0, 3}), 0, 0, 0, 0},
      {at::arange((1 << 20) + 3).to(at::kFloat).view({-1, 1}), 0, (1 << 20) + 2, ((1 << 20) + 2) / 2.0, 0},
      {at::tensor(std::vector<std::int64_t>{-7, 2}, at::kLong), -7, 2, -2.5, 0},
      {at::full({3, 2}, 0.5).to(at::kHalf).t(), 0.5, 0.5, 0.5, 0},
  };
  for (const auto& [values, min, max, mean, nonfinite] : cases) {
    const auto found = stats_of(values);
    EXPECT_EQ(found.min, min);
    EXPECT_EQ(found.max, max);
    EXPECT_DOUBLE_EQ(found.mean, mean);
    EXPECT_EQ(found.nonfinite, nonfinite);
  }
}

}  // namespace
}  // namespace trireme::checkpoint
