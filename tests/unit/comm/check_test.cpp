// The comparison of operations between ranks: fingerprints, and their exchange through a store.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "core/base/error.h"
#include "core/comm/fingerprint.h"

namespace trireme::comm {
namespace {

Fingerprint print_of(const char* op, std::vector<std::int64_t> sizes, const char* dtype = "float32", int root = -1) {
  return Fingerprint({.op = op, .sequence = 0, .dtype = dtype, .sizes = sizes, .root = root});
}

TEST(Fingerprint, ComparesAllThatRanksMustAgreeOn) {
  auto sum = print_of("all_reduce", {4, 2}), most = sum, late = sum;
  sum.set_reduction("sum");
  most.set_reduction("max");
  late.set_reduction("sum");
  late.sequence = 1;
  EXPECT_TRUE(sum.matches(sum));
  const auto plain = print_of("all_reduce", {4, 2});
  for (const auto& other : {most, late, plain, print_of("all_gather", {4, 2})}) EXPECT_FALSE(sum.matches(other));
  for (const auto& other : {print_of("all_reduce", {2, 4}), print_of("all_reduce", {4, 2}, "float16"),
                            print_of("all_reduce", {4, 2}, "float32", 1), print_of("all_reduce", {8})})
    EXPECT_FALSE(plain.matches(other)) << other.text();
  auto one = print_of("gather", {3}), two = print_of("gather", {5});
  one.uneven = two.uneven = 1;
  EXPECT_TRUE(one.matches(two));
  EXPECT_TRUE(print_of("send", {3}).fits_receive(print_of("recv", {3})));
  EXPECT_FALSE(print_of("send", {3}).fits_receive(print_of("recv", {4})));
}

TEST(Fingerprint, TheErrorNamesWhoCallsWhat) {
  const std::vector<Fingerprint> all{print_of("all_reduce", {4}), print_of("all_reduce", {4}),
                                     print_of("broadcast", {4}, "float32", 1)};
  const std::vector<int> ranks{0, 2, 4};
  const auto text = difference("X", 0, all, ranks);
  EXPECT_NE(text.find("rank 2 (world rank 4) calls broadcast of [4] float32, root 1"), std::string::npos) << text;
  EXPECT_EQ(text.find("rank 1 (world"), std::string::npos) << text;
  EXPECT_EQ(difference("X", 0, std::vector(3, all[0]), ranks), "");
}

/// What each rank's comparison says in the end; "" if nothing. `shapes[r]`: of rank r's operations.
std::vector<std::string> compare_by_store(const std::vector<std::vector<std::int64_t>>& shapes,
                                          std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(timeout);
  std::vector<std::string> said(shapes.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < shapes.size(); ++rank)
    threads.emplace_back([&, rank] {
      StoreCheck check(store, "dp", static_cast<int>(rank), {0, 1});
      try {
        for (const auto size : shapes[rank]) check.compare(print_of("all_reduce", {size}));
      } catch (const CommError& error) {
        said[rank] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  return said;
}

TEST(StoreCheck, FindsADifferenceAndAMissingRank) {
  EXPECT_EQ(compare_by_store({{1, 2, 3, 4}, {1, 2, 3, 4}}), (std::vector<std::string>{"", ""}));
  const auto differ = compare_by_store({{1, 2, 3}, {1, 5, 3}});
  EXPECT_NE(differ[0].find("rank 1 (world rank 1) calls all_reduce of [5] float32"), std::string::npos) << differ[0];
  EXPECT_NE(differ[1].find("rank 0 (world rank 0) calls all_reduce of [2] float32"), std::string::npos) << differ[1];
  const auto missing = compare_by_store({{1, 2}, {1}}, std::chrono::milliseconds(300));
  EXPECT_NE(missing[0].find("rank 1 (world rank 1) did not come to this operation"), std::string::npos) << missing[0];
}

}  // namespace
}  // namespace trireme::comm
