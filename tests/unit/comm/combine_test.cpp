// The arithmetic of reductions, on values that expose a wrong type or order.
#include "core/comm/engine/combine.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace trireme::comm {
namespace {

using Op = c10d::ReduceOp::RedOpType;

at::Tensor combined(Op op, const std::vector<at::Tensor>& ranks) {
  auto out = at::empty_like(ranks[0]);
  std::vector<const void*> sources;
  for (const auto& tensor : ranks) sources.push_back(tensor.const_data_ptr());
  engine::combine(out.scalar_type(), op, out.data_ptr(), sources, static_cast<std::size_t>(out.numel()));
  return out;
}

/// One value per rank, in a tensor longer than a block of the accumulator and no multiple of it.
template <class T>
std::vector<at::Tensor> ranks_of(const std::vector<T>& values, at::ScalarType type) {
  std::vector<at::Tensor> ranks;
  for (const auto value : values) ranks.push_back(at::full({1500}, value, type));
  return ranks;
}

TEST(Combine, half_precision_adds_up_in_float_and_rounds_once) {
  // 256 + 1 is 256 in bfloat16 (8 bits), 2048 + 1 is 2048 in float16 (11 bits): added one by one, the ones are lost.
  for (const auto& [type, large] : {std::pair{at::kBFloat16, 256.0}, std::pair{at::kHalf, 2048.0}}) {
    const auto ranks = ranks_of<double>({large, 1, 1, 1, 1}, type);
    EXPECT_TRUE(at::equal(combined(Op::SUM, ranks), at::full({1500}, large + 4, type))) << c10::toString(type);
    EXPECT_TRUE(at::equal(combined(Op::AVG, ranks), at::full({1500}, (large + 4) / 5, type))) << c10::toString(type);
  }
}

TEST(Combine, integers_keep_their_sign) {
  for (const auto type : {at::kChar, at::kShort, at::kInt, at::kLong})
    for (const bool two : {true, false}) {  // two ranks take a separate code path
      SCOPED_TRACE(std::string(c10::toString(type)) + (two ? ", 2 ranks" : ", 3 ranks"));
      std::vector<std::int64_t> values{-7, 5};
      if (!two) values.push_back(-3);
      const auto ranks = ranks_of(values, type);
      const auto expect = [&](Op op, std::int64_t value) {
        EXPECT_TRUE(at::equal(combined(op, ranks), at::full({1500}, value, type))) << static_cast<int>(op);
      };
      expect(Op::SUM, two ? -2 : -5);
      expect(Op::AVG, -1);  // towards zero: -2 / 2, -5 / 3
      expect(Op::PRODUCT, two ? -35 : 105);
      expect(Op::MIN, -7);
      expect(Op::MAX, 5);
    }
  // Unsigned integers keep all their bits.
  const auto bytes = ranks_of<std::int64_t>({200, 100, 3}, at::kByte);
  EXPECT_TRUE(at::equal(combined(Op::MIN, bytes), at::full({1500}, 3, at::kByte)));
  EXPECT_TRUE(at::equal(combined(Op::MAX, bytes), at::full({1500}, 200, at::kByte)));
  EXPECT_TRUE(at::equal(combined(Op::SUM, bytes), at::full({1500}, 303 - 256, at::kByte)));
}

TEST(Combine, a_nan_of_any_rank_is_a_nan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16})
    for (const auto op : {Op::MIN, Op::MAX, Op::SUM, Op::AVG, Op::PRODUCT})
      for (std::size_t size = 2; size <= 4; ++size)
        for (std::size_t where = 0; where < size; ++where) {
          std::vector<double> values{1, -2, 3, 0.5};
          values.resize(size);
          values[where] = nan;
          EXPECT_TRUE(combined(op, ranks_of(values, type)).isnan().all().item<bool>())
              << c10::toString(type) << ", op " << static_cast<int>(op) << ", on rank " << where << " of " << size;
        }
}

}  // namespace
}  // namespace trireme::comm
