// Properties of the flat layout that everything else relies on.
#include "zero/flat_layout.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "zero/buckets.h"

namespace trireme::zero {
namespace {

const std::vector<std::int64_t> kSizes{1, 63, 64, 65, 50257};

/// Every list of one, two and three of the sizes.
std::vector<std::vector<std::int64_t>> lists() {
  std::vector<std::vector<std::int64_t>> out;
  for (const auto a : kSizes) {
    out.push_back({a});
    for (const auto b : kSizes) {
      out.push_back({a, b});
      for (const auto c : kSizes) out.push_back({a, b, c});
    }
  }
  return out;
}

TEST(FlatLayout, EveryElementIsOwnedOnceAtItsOffset) {
  for (const auto& sizes : lists())
    for (const int parts : {1, 2, 3, 8}) {
      const FlatLayout layout(sizes, parts);
      ASSERT_EQ(layout.total(), layout.part_size() * parts);
      ASSERT_EQ(layout.part_size() % FlatLayout::kAlignment, 0);
      std::int64_t payload = 0, end = 0;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const auto whole = layout.item(i);
        ASSERT_EQ(whole.size(), sizes[i]);
        ASSERT_GE(whole.begin, end) << "items keep their order and do not overlap";
        ASSERT_EQ(whole.begin % FlatLayout::kAlignment, 0);
        end = whole.end;
        payload += sizes[i];
        std::int64_t next = 0;
        for (int rank = 0; rank < parts; ++rank) {
          const auto owned = layout.owned(i, rank);
          if (owned.size() == 0) continue;
          ASSERT_EQ(owned.begin, next) << "the parts of an item follow one another";
          next = owned.end;
          const auto at = layout.offset_in_part(i, rank);
          ASSERT_EQ(layout.part(rank).begin + at, whole.begin + owned.begin);
          ASSERT_LE(at + owned.size(), layout.part_size());
        }
        ASSERT_EQ(next, sizes[i]);
      }
      ASSERT_EQ(layout.payload(), payload);
      ASSERT_LT(layout.total() - payload,
                static_cast<std::int64_t>(sizes.size() + static_cast<std::size_t>(parts)) * FlatLayout::kAlignment);
    }
}

nn::Declaration declared(const std::string& name, std::int64_t size, bool trained = true) {
  return {name, shard::Placement::whole(name, {size}), shard::Init::zeros(),
          at::Tensor(at::empty({0})).set_requires_grad(trained)};
}

TEST(Buckets, LastParametersFirstFrozenOnesSeparate) {
  const std::vector<nn::Declaration> parameters{declared("a", 10), declared("b", 900), declared("c", 40, false),
                                                declared("d", 30), declared("e", 80)};
  const auto buckets = plan_buckets(parameters, {.elements = 100, .parts = 2});
  ASSERT_EQ(buckets.size(), 4U);
  EXPECT_EQ(buckets[0].parameters, (std::vector<std::size_t>{4, 3}));
  EXPECT_EQ(buckets[1].parameters, (std::vector<std::size_t>{1}));
  EXPECT_EQ(buckets[2].parameters, (std::vector<std::size_t>{0}));
  EXPECT_TRUE(buckets[2].trained);
  EXPECT_EQ(buckets[3].parameters, (std::vector<std::size_t>{2}));
  EXPECT_FALSE(buckets[3].trained);
  const auto larger = plan_buckets(parameters, {.elements = 1 << 20, .parts = 2});
  ASSERT_EQ(larger.size(), 2U);
  EXPECT_EQ(larger[0].parameters, (std::vector<std::size_t>{4, 3, 1, 0}));
  EXPECT_EQ(larger[1].parameters, (std::vector<std::size_t>{2}));
  EXPECT_FALSE(larger[1].trained);
  EXPECT_THROW(plan_buckets(parameters, {.elements = 0, .parts = 2}), LogicError);
}

TEST(Buckets, DefaultSizeShrinksToTheModel) {
  constexpr std::int64_t mi = 1 << 20;
  EXPECT_EQ(default_bucket_elements(1000 * mi), 12 * mi);
  EXPECT_EQ(default_bucket_elements(96 * mi), 12 * mi);
  EXPECT_EQ(default_bucket_elements(8 * mi), mi);
  EXPECT_EQ(default_bucket_elements(1000), 64 * 1024);
}

}  // namespace
}  // namespace trireme::zero
