// all_to_all() with uneven counts, as a layer of experts uses it: each rank has one expert and some tokens. Values and
// gradients equal those of one process that has all tokens and experts.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/shard/init.h"
#include "shardformer/tensor/collectives.h"
#include "tests/ranks/world.h"

namespace trireme::tests {
namespace {

constexpr std::int64_t kFeatures = 3;

struct Routing {
  const char* name;
  bool empty_rank;     ///< rank 0 has no tokens
  bool unused_expert;  ///< nobody sends the last one a token
};

class TokenExchange : public testing::TestWithParam<Routing> {
 protected:
  static at::Tensor drawn(const std::string& name, std::vector<std::int64_t> shape) {
    return shard::draw(shard::Init::normal(0, 1), 3, shard::Placement::whole(name, std::move(shape)), at::kDouble,
                       at::kCPU);
  }
  static at::Tensor tokens_of(int rank) {
    return drawn(fmt::format("x{}", rank), {GetParam().empty_rank && rank == 0 ? 0 : 2 * rank + 1, kFeatures});
  }
  static at::Tensor experts(const char* layer) { return drawn(layer, {world().size(), kFeatures, kFeatures}); }
  static at::Tensor choice_of(int rank) {
    const auto tokens = at::arange(tokens_of(rank).size(0), at::kLong);
    return (tokens * tokens + rank).remainder(std::max(1, world().size() - (GetParam().unused_expert ? 1 : 0)));
  }
  static at::Tensor loss_of(const at::Tensor& y) { return (y * y.cos()).sum(); }
};

/// Each token by its expert, in one process.
at::Tensor plain(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& experts) {
  return at::matmul(x.unsqueeze(1), experts.index_select(0, choice)).squeeze(1).tanh();
}

/// The same on ranks that have an expert each.
at::Tensor routed(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& expert, const comm::Group& group) {
  const auto order = choice.argsort(/*stable=*/true, /*dim=*/0);
  std::vector<at::Tensor> counts, theirs;
  std::vector<std::int64_t> send, receive;
  for (int rank = 0; rank < group.size(); ++rank) {
    send.push_back(choice.eq(rank).sum().item<std::int64_t>());
    counts.push_back(at::full({1}, send.back(), on(at::kLong)));
    theirs.push_back(at::empty({1}, on(at::kLong)));
  }
  group.all_to_all(theirs, counts);
  for (const auto& count : theirs) receive.push_back(count.item<std::int64_t>());
  const auto there = shardformer::all_to_all(x.index_select(0, order), send, receive, group);
  const auto back = shardformer::all_to_all(at::matmul(there, expert).tanh(), receive, send, group);
  return back.index_select(0, order.argsort());
}

TEST_P(TokenExchange, EqualsOneProcess) {
  const auto& group = world().group();
  const int ranks = group.size(), mine = group.rank();

  std::vector<at::Tensor> xs, ys;
  const auto first = experts("first").set_requires_grad(true), second = experts("second").set_requires_grad(true);
  at::Tensor loss;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto choice = choice_of(rank);
    xs.push_back(tokens_of(rank).set_requires_grad(true));
    const auto sum = plain(xs.back(), choice, first) + plain(xs.back(), choice, second);
    ys.push_back(plain(sum, choice, first));
    loss = loss.defined() ? loss + loss_of(ys.back()) : loss_of(ys.back());
  }
  loss.backward();

  const auto x = tokens_of(mine).to(on(at::kDouble)).set_requires_grad(true);
  const auto one = experts("first").select(0, mine).to(on(at::kDouble)).contiguous().set_requires_grad(true);
  const auto other = experts("second").select(0, mine).to(on(at::kDouble)).contiguous().set_requires_grad(true);
  const auto choice = choice_of(mine).to(on(at::kLong));
  const auto sum = routed(x, choice, one, group) + routed(x, choice, other, group);
  const auto y = routed(sum, choice, one, group);
  loss_of(y).backward();

  const auto expect_near = [](const at::Tensor& got, const at::Tensor& wanted, const char* what) {
    ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
    if (got.numel() > 0) {
      EXPECT_LE((got.detach().cpu() - wanted).abs().max().item<double>(), 1e-9) << what;
    }
  };
  const auto own = static_cast<std::size_t>(mine);
  expect_near(y, ys[own].detach(), "y");
  expect_near(x.grad(), xs[own].grad(), "gradient of x");
  expect_near(one.grad(), first.grad()[mine], "gradient of the first expert");
  expect_near(other.grad(), second.grad()[mine], "gradient of the second expert");
}

INSTANTIATE_TEST_SUITE_P(All, TokenExchange,
                         testing::Values(Routing{"every_rank", false, false}, Routing{"empty_rank", true, false},
                                         Routing{"unused_expert", false, true}, Routing{"both", true, true}),
                         [](const auto& value) { return std::string(value.param.name); });

TEST(TokenExchangeRules, OfOneRankSendsNothing) {
  const auto x = at::arange(6, on(at::kDouble)).view({2, 3});
  const auto alone = comm::Group::alone("ep", 0, nullptr);
  EXPECT_TRUE(shardformer::all_to_all(x, {2}, {2}, alone).is_same(x));
  EXPECT_THROW((void)shardformer::all_to_all(x, {3}, {3}, alone), LogicError);
}

}  // namespace
}  // namespace trireme::tests
