#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/error.h"
#include "core/shard/init.h"
#include "core/shard/norm.h"
#include "core/shard/placement.h"

namespace trireme::shard {
namespace {

at::Tensor numbered(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const auto s : shape) n *= s;
  return at::arange(n, at::kDouble).view(shape);
}

TEST(Split, CoversEverythingAndDiffersByAtMostOne) {
  for (const std::int64_t size : {0, 1, 63, 64, 65, 197, 50257})
    for (const int parts : {1, 2, 3, 8}) {
      std::int64_t at = 0, smallest = size, largest = 0;
      for (int i = 0; i < parts; ++i) {
        const auto r = split(size, parts, i);
        EXPECT_EQ(r.begin, at);
        at = r.end;
        smallest = std::min(smallest, r.size());
        largest = std::max(largest, r.size());
      }
      EXPECT_EQ(at, size);
      EXPECT_LE(largest - smallest, 1);
    }
}

struct Case {
  const char* name;
  std::vector<std::int64_t> shape;
  std::vector<std::vector<Cut>> ranks;  // the cuts of each rank
  int flat_parts;                       // 0: no flat range
};

class Slices : public testing::TestWithParam<Case> {};

// All ranks' slices together are the full tensor, each element once; and a slice equals plain indexing.
TEST_P(Slices, PasteGivesTheFullTensorBack) {
  const auto& c = GetParam();
  const auto full = numbered(c.shape);
  auto rebuilt = at::full(c.shape, -1.0, at::kDouble);
  std::int64_t held = 0;
  for (const auto& cuts : c.ranks)
    for (int part = 0; part < std::max(1, c.flat_parts); ++part) {
      auto p = Placement::whole("w", c.shape);
      p.cuts = cuts;
      auto expected = full;
      for (const auto& cut : cuts) {
        std::vector<at::Tensor> pieces;
        for (const auto& r : cut.ranges) pieces.push_back(expected.narrow(cut.dim, r.begin, r.size()));
        expected = at::cat(pieces, cut.dim);
      }
      if (c.flat_parts > 0) {
        p.flat = split(p.local_numel(), c.flat_parts, part);
        expected = expected.contiguous().view(-1).narrow(0, p.flat->begin, p.flat->size());
      }
      const auto local = p.slice(full);
      EXPECT_TRUE(local.equal(expected)) << c.name;
      EXPECT_EQ(local.sizes().vec(), p.local_shape());
      held += local.numel();
      p.paste(rebuilt, local);
    }
  EXPECT_EQ(held, full.numel());
  EXPECT_TRUE(rebuilt.equal(full)) << c.name;
}

/// The cuts of ranks that each have the ranges of one dim.
std::vector<std::vector<Cut>> along(std::int64_t dim, const std::vector<std::vector<Range>>& ranks) {
  std::vector<std::vector<Cut>> out;
  for (const auto& ranges : ranks) out.push_back({{dim, ranges}});
  return out;
}

/// A rank for each pair of a rank of `first` and one of `second`.
std::vector<std::vector<Cut>> product_of(const std::vector<std::vector<Cut>>& first,
                                         const std::vector<std::vector<Cut>>& second) {
  std::vector<std::vector<Cut>> out;
  for (const auto& one : first)
    for (const auto& other : second) {
      out.push_back(one);
      out.back().insert(out.back().end(), other.begin(), other.end());
    }
  return out;
}

const auto kQkv = along(0, {{{0, 2}, {3, 5}, {6, 8}}, {{2, 3}, {5, 6}, {8, 9}}});
const auto kExperts = along(0, {{{0, 3}}, {{3, 5}}}), kOutputs = along(2, {{{0, 4}}, {{4, 7}}});

INSTANTIATE_TEST_SUITE_P(
    All, Slices,
    testing::Values(
        Case{"whole", {5, 3}, {{}}, 0}, Case{"zero_dim", {}, {{}}, 0},
        Case{"rows", {7, 3}, along(0, {{{0, 4}}, {{4, 7}}}), 0},
        Case{"columns", {4, 7}, along(1, {{{0, 3}}, {{3, 5}}, {{5, 7}}}), 0}, Case{"qkv", {9, 2}, kQkv, 0},
        Case{"empty_rank", {2, 2}, along(0, {{{0, 1}}, {{1, 2}}, {{2, 2}}}), 0}, Case{"flat", {5, 13}, {{}}, 3},
        Case{"flat_more_ranks", {3}, {{}}, 8}, Case{"middle_dim_flat", {2, 5, 3}, along(1, {{{0, 3}}, {{3, 5}}}), 2},
        Case{"qkv_flat", {9, 5}, kQkv, 2}, Case{"experts_and_outputs", {5, 3, 7}, product_of(kExperts, kOutputs), 0},
        Case{"experts_and_outputs_flat", {5, 3, 7}, product_of(kExperts, kOutputs), 3},
        Case{"neighbouring_dims", {9, 4, 2}, product_of(kQkv, along(1, {{{0, 1}, {2, 3}}, {{1, 2}, {3, 4}}})), 2},
        Case{"three_dims", {5, 4, 7}, product_of(product_of(kExperts, along(1, {{{0, 4}}, {{4, 4}}})), kOutputs), 0}),
    [](const auto& value) { return std::string(value.param.name); });

TEST(Placement, RefusesARangeOutsideTheTensor) {
  auto p = Placement::whole("w", {4, 2});
  p.cut(0, {{2, 5}}, "tp");
  EXPECT_THROW(static_cast<void>(p.runs()), LogicError);
  EXPECT_THROW(static_cast<void>(p.cut(0, {{0, 1}}, "ep")), LogicError) << "the dim is cut";
  EXPECT_THROW(static_cast<void>(p.cut(1, {{0, 1}}, "tp")), LogicError) << "its ranks hold other rows already";
  EXPECT_THROW(static_cast<void>(Placement::whole("w", {4}).slice(numbered({5}))), LogicError);
}

TEST(Init, ASliceIsDrawnAsTheFullTensorIs) {
  for (const auto& init : {Init::normal(1, 2), Init::trunc_normal(0, 0.02), Init::uniform(-1, 3), Init::ones()}) {
    auto whole = Placement::whole("layer.weight", {9, 5});
    const auto full = draw(init, 42, whole, at::kDouble, at::kCPU);
    auto p = whole;
    p.cut(0, {{1, 3}, {6, 7}});
    p.flat = Range{2, 13};
    EXPECT_TRUE(draw(init, 42, p, at::kDouble, at::kCPU).equal(p.slice(full)));
    EXPECT_TRUE(draw(init, 42, whole, at::kFloat, at::kCPU).equal(full.to(at::kFloat)));
  }
}

TEST(Init, DependsOnSeedAndNameAndHasItsMoments) {
  const auto p = Placement::whole("a.weight", {200, 100});
  const auto x = draw(Init::trunc_normal(0, 0.02), 1, p, at::kDouble, at::kCPU);
  EXPECT_FALSE(x.equal(draw(Init::trunc_normal(0, 0.02), 2, p, at::kDouble, at::kCPU)));
  EXPECT_FALSE(
      x.equal(draw(Init::trunc_normal(0, 0.02), 1, Placement::whole("b.weight", {200, 100}), at::kDouble, at::kCPU)));
  EXPECT_LE(x.abs().max().item<double>(), 0.04);
  EXPECT_NEAR(x.mean().item<double>(), 0, 6e-4);
  EXPECT_NEAR(x.std().item<double>(), 0.02 * 0.8796, 3e-4);  // of a normal cut at two deviations
  // Quartiles of the cut normal: the inverse distribution function is right, not merely bounded.
  EXPECT_NEAR(x.quantile(0.75).item<double>() / 0.02, 0.6406, 0.02);
}

TEST(Norm, ClipFactor) {
  const auto factor = [](double norm) { return clip_factor(at::full({}, norm, at::kDouble), 1.0).item<double>(); };
  EXPECT_DOUBLE_EQ(factor(4.0), 1.0 / (4.0 + 1e-6));
  EXPECT_DOUBLE_EQ(factor(0.5), 1.0);
  EXPECT_TRUE(std::isnan(factor(std::nan(""))));
}

}  // namespace
}  // namespace trireme::shard
