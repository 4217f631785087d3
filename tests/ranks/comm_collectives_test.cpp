// Checks the result of every collective on each rank, for every dtype, reduction, shape and group.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/comm/parts.h"
#include "tests/ranks/comm_test.h"
#include "tests/ranks/world.h"

namespace trireme::tests {
namespace {

using comm::Group;
using comm::ReduceOp;
using Tensors = std::vector<at::Tensor>;

constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};

/// How the same values are laid out in memory: contiguous, transposed, or as every other element.
enum class Layout { contiguous, transposed, strided };
constexpr Layout kLayouts[] = {Layout::contiguous, Layout::transposed, Layout::strided};

at::Tensor laid_out(const at::Tensor& tensor, Layout layout) {
  if (layout == Layout::contiguous || tensor.dim() < 2) return tensor.clone();
  if (layout == Layout::transposed) return tensor.transpose(0, 1).contiguous().transpose(0, 1);
  auto wide_shape = tensor.sizes().vec();
  wide_shape.back() *= 2;
  auto narrow = at::zeros(wide_shape, tensor.options()).slice(-1, 0, wide_shape.back(), 2);
  narrow.copy_(tensor);
  return narrow;
}

struct Case {
  std::vector<std::int64_t> shape;
  Layout layout;
};

/// Empty tensors, one element, odd sizes in each layout, and for some dtypes more elements than one round sends. A
/// separate test has the sizes that are sent in chunks.
std::vector<Case> cases(at::ScalarType type) {
  std::vector<Case> all{{{0}, Layout::contiguous},
                        {{1}, Layout::contiguous},
                        {{3, 5}, Layout::contiguous},
                        {{3, 5}, Layout::transposed},
                        {{3, 5}, Layout::strided}};
  if (type == at::kFloat || type == at::kBFloat16) all.push_back({{7, 4099}, Layout::contiguous});
  return all;
}

/// Runs a body for every group; the message of a failure names the group.
template <class Body>
void on_each_group(Body&& body) {
  for (const auto& [name, group] : groups()) {
    SCOPED_TRACE("group " + name);
    body(group);
  }
}

bool defined(at::ScalarType type, ReduceOp op) { return !(type == at::kBool && op == ReduceOp::avg); }

TEST(Collectives, all_reduce) {
  on_each_group([](const Group& group) {
    const int me = group.ranks()[static_cast<std::size_t>(group.rank())];
    for (const auto type : all_types())
      for (const auto op : kOps)
        for (const auto& c : cases(type)) {
          if (!defined(type, op)) continue;
          auto tensor = laid_out(values(me, c.shape, type), c.layout);
          group.all_reduce(tensor, op);
          EXPECT_TRUE(same(tensor, reduced(group, c.shape, type, op)))
              << op_name(op) << " " << c10::toString(type) << " " << tensor.sizes();
        }
  });
}

TEST(Collectives, megabytes_are_sent_in_chunks) {
  for (const auto* group_name : {"world", "half"}) {
    const auto found =
        std::find_if(groups().begin(), groups().end(), [&](const auto& g) { return g.name == group_name; });
    SCOPED_TRACE(group_name);
    const auto& group = found->group;
    const int me = group.ranks()[static_cast<std::size_t>(group.rank())];
    const std::vector<std::int64_t> shape{3, 700'001};  // 8.4 MB, with an odd number of elements
    const auto mine = values(me, shape, at::kFloat), sum = reduced(group, shape, at::kFloat, ReduceOp::sum);
    auto tensor = mine.clone();
    group.all_reduce(tensor);
    EXPECT_TRUE(same(tensor, sum));
    tensor = mine.clone();
    group.reduce(tensor, 0);
    EXPECT_TRUE(same(tensor, group.rank() == 0 ? sum : mine));
    const auto all = at::zeros({3 * group.size(), 700'001}, on());
    group.all_gather_into(all, mine);
    auto part = at::zeros(shape, on());
    group.reduce_scatter_into(part, all, ReduceOp::max);
    EXPECT_TRUE(same(part, values(group.ranks()[static_cast<std::size_t>(group.rank())], shape, at::kFloat)));
  }
}

TEST(Collectives, reduce_changes_only_the_root) {
  on_each_group([](const Group& group) {
    const int me = group.ranks()[static_cast<std::size_t>(group.rank())];
    for (const auto type : all_types())
      for (const auto op : {ReduceOp::sum, ReduceOp::max})
        for (const auto& c : cases(type))
          for (int root = 0; root < group.size(); root += 2) {
            const auto before = values(me, c.shape, type);
            auto tensor = laid_out(before, c.layout);
            group.reduce(tensor, root, op);
            EXPECT_TRUE(same(tensor, group.rank() == root ? reduced(group, c.shape, type, op) : before))
                << c10::toString(type);
          }
  });
}

TEST(Collectives, broadcast) {
  on_each_group([](const Group& group) {
    const int me = group.ranks()[static_cast<std::size_t>(group.rank())];
    for (const auto type : all_types())
      for (const auto& c : cases(type))
        for (int root = 0; root < group.size(); ++root) {
          auto tensor = laid_out(values(me, c.shape, type, root), c.layout);
          group.broadcast(tensor, root);
          EXPECT_TRUE(same(tensor, values(group.ranks()[static_cast<std::size_t>(root)], c.shape, type, root)))
              << c10::toString(type) << " root " << root;
        }
  });
}

TEST(Collectives, all_gather_into) {
  on_each_group([](const Group& group) {
    const int me = group.ranks()[static_cast<std::size_t>(group.rank())];
    for (const auto type : all_types())
      for (const auto& c : cases(type)) {
        auto whole_shape = c.shape;
        whole_shape[0] *= group.size();
        auto output = laid_out(at::zeros(whole_shape, on(type)), c.layout);
        group.all_gather_into(output, laid_out(values(me, c.shape, type), c.layout));
        for (int r = 0; r < group.size(); ++r)
          EXPECT_TRUE(same(output.narrow(0, r * c.shape[0], c.shape[0]),
                           values(group.ranks()[static_cast<std::size_t>(r)], c.shape, type)))
              << c10::toString(type) << " part " << r;
      }
  });
}

TEST(Collectives, all_gather_of_uneven_pieces) {
  on_each_group([](const Group& group) {
    const int me = group.ranks()[static_cast<std::size_t>(group.rank())];
    // Rank 0 has an empty piece.
    const auto shape_of = [](int world_rank) { return std::vector<std::int64_t>{2 * world_rank, 3}; };
    for (const auto type : all_types()) {
      for (const bool later : {false, true}) {
        Tensors outputs;
        for (const int r : group.ranks())
          outputs.push_back(laid_out(at::zeros(shape_of(r), on(type)), Layout::transposed));
        if (later)
          group.all_gather_async(outputs, values(me, shape_of(me), type)).wait();
        else
          group.all_gather(outputs, values(me, shape_of(me), type));
        for (int r = 0; r < group.size(); ++r) {
          const int from = group.ranks()[static_cast<std::size_t>(r)];
          EXPECT_TRUE(same(outputs[static_cast<std::size_t>(r)], values(from, shape_of(from), type)))
              << c10::toString(type);
        }
      }
    }
  });
}

TEST(Collectives, reduce_scatter_into) {
  on_each_group([](const Group& group) {
    const int me = group.ranks()[static_cast<std::size_t>(group.rank())];
    for (const auto type : all_types())
      for (const auto op : kOps)
        for (const auto& c : cases(type)) {
          if (!defined(type, op)) continue;
          Case whole = c;
          whole.shape[0] *= group.size();
          auto output = laid_out(at::zeros(c.shape, on(type)), c.layout);
          group.reduce_scatter_into(output, laid_out(values(me, whole.shape, type), c.layout), op);
          ASSERT_TRUE(
              same(output, reduced(group, whole.shape, type, op).narrow(0, group.rank() * c.shape[0], c.shape[0])))
              << op_name(op) << " " << c10::toString(type);
        }
  });
}

TEST(Collectives, reduce_scatter_of_uneven_pieces) {
  on_each_group([](const Group& group) {
    const int me = group.ranks()[static_cast<std::size_t>(group.rank())];
    // The sizes range from nothing to more than one chunk.
    const auto shape_of = [](int r) { return std::vector<std::int64_t>{r == 3 ? 800'000 : 5 * r}; };
    Tensors inputs;
    for (int r = 0; r < group.size(); ++r) inputs.push_back(values(me, shape_of(r), at::kDouble, r));
    const auto expected = reduced(group, shape_of(group.rank()), at::kDouble, ReduceOp::sum, group.rank());
    auto output = at::zeros(shape_of(group.rank()), on(at::kDouble)), later = at::zeros_like(output);
    group.reduce_scatter(output, inputs, ReduceOp::sum);
    EXPECT_TRUE(same(output, expected));
    group.reduce_scatter_async(later, inputs, ReduceOp::sum).wait();
    EXPECT_TRUE(same(later, expected));
  });
}

TEST(Collectives, uneven_pieces_are_sent_as_equal_parts) {  // as a Group over NCCL sends them
  on_each_group([](const Group& group) {
    const int me = group.ranks()[static_cast<std::size_t>(group.rank())];
    for (const auto type : all_types()) {
      Tensors pieces, inputs, expected;
      for (const int r : group.ranks()) {
        const std::vector<std::int64_t> shape{2 * r, 3};  // empty for rank 0
        pieces.push_back(at::zeros(shape, on(type)));
        expected.push_back(values(r, shape, type));
        inputs.push_back(values(me, shape, type, r));
      }
      const auto own = static_cast<std::size_t>(group.rank());
      const comm::Parts gathered(pieces, pieces[0].options());
      group.all_gather_into(gathered.whole(), gathered.single(expected[own], /*reads=*/true));
      for (std::size_t r = 0; r < pieces.size(); ++r)
        EXPECT_TRUE(same(gathered.part(r), expected[r])) << c10::toString(type);
      const comm::Parts summed(inputs, pieces[0].options());
      for (std::size_t r = 0; r < inputs.size(); ++r) summed.part(r).copy_(inputs[r]);
      const auto mine = summed.single(pieces[own], /*reads=*/false);
      group.reduce_scatter_into(mine, summed.whole());
      EXPECT_TRUE(same(comm::Parts::in_shape(mine, pieces[own].sizes()),
                       reduced(group, pieces[own].sizes(), type, ReduceOp::sum, me)))
          << c10::toString(type);
    }
  });
}

TEST(Collectives, gather_and_scatter) {
  on_each_group([](const Group& group) {
    const int me = group.ranks()[static_cast<std::size_t>(group.rank())];
    for (const auto type : all_types())
      for (const auto& c : cases(type)) {
        const int root = group.size() - 1;
        Tensors all;
        if (group.rank() == root)
          for (int r = 0; r < group.size(); ++r) all.push_back(laid_out(at::zeros(c.shape, on(type)), c.layout));
        group.gather(all, laid_out(values(me, c.shape, type), c.layout), root);
        for (std::size_t r = 0; r < all.size(); ++r)
          EXPECT_TRUE(same(all[r], values(group.ranks()[r], c.shape, type))) << c10::toString(type);
        auto back = laid_out(at::zeros(c.shape, on(type)), c.layout);
        group.scatter(back, all, root);
        EXPECT_TRUE(same(back, values(me, c.shape, type))) << c10::toString(type);
      }
  });
}

TEST(Collectives, all_to_all_of_uneven_pieces) {
  on_each_group([](const Group& group) {
    for (const auto type : all_types()) {
      // Group rank a sends a + 2b elements to b, with values that depend on both.
      const auto piece = [&](int a, int b) { return values(a, {a + 2 * b}, type, b); };
      Tensors inputs, outputs;
      for (int r = 0; r < group.size(); ++r) {
        inputs.push_back(piece(group.rank(), r));
        outputs.push_back(at::zeros({r + 2 * group.rank()}, on(type)));
      }
      group.all_to_all(outputs, inputs);
      for (int r = 0; r < group.size(); ++r)
        EXPECT_TRUE(same(outputs[static_cast<std::size_t>(r)], piece(r, group.rank()))) << c10::toString(type);
    }
  });
}

TEST(Collectives, send_and_receive_by_tag) {
  TRIREME_ONLY_OVER_MPI("NCCL has no tags");
  on_each_group([](const Group& group) {
    const int n = group.size(), me = group.rank();
    if (n == 1) {
      EXPECT_THROW(group.send(at::zeros({1}, on()), 0), CommError);
      return;
    }
    const int next = (me + 1) % n, before = (me + n - 1) % n;
    for (const auto type : all_types())
      for (const auto& c : cases(type)) {
        // The receives are posted in the opposite order of the sends: the tag decides.
        auto first = laid_out(at::zeros(c.shape, on(type)), c.layout), second = at::zeros(c.shape, on(type));
        auto send_a = group.send_async(values(me, c.shape, type, 1), next, 11);
        auto send_b = group.send_async(laid_out(values(me, c.shape, type, 2), c.layout), next, 12);
        auto recv_b = group.recv_async(second, before, 12);
        group.recv(first, before, 11);
        recv_b.wait();
        send_a.wait();
        send_b.wait();
        EXPECT_TRUE(same(first, values(before, c.shape, type, 1))) << c10::toString(type);
        EXPECT_TRUE(same(second, values(before, c.shape, type, 2))) << c10::toString(type);
      }
  });
}

TEST(Collectives, exchange_sends_and_receives_at_once) {
  if (world().size() == 1) GTEST_SKIP() << "there is no other rank";
  on_each_group([](const Group& group) {
    if (group.size() == 1) return;
    const int size = group.size(), rank = group.rank(), next = (rank + 1) % size, before = (rank + size - 1) % size;
    const auto from = [&](int r, std::int64_t n, at::ScalarType type) {
      return values(group.ranks()[static_cast<std::size_t>(r)], {n}, type);
    };
    for (const auto type : all_types())
      for (const auto layout : kLayouts) {
        // Around the ring, two tensors in each direction; with two ranks all go to one peer, in order.
        auto a = laid_out(at::zeros({3, 4}, on(type)), layout), b = at::zeros({7}, on(type));
        auto c = at::zeros({5}, on(type)), empty = at::zeros({0}, on(type));
        auto work = group.exchange_async({{laid_out(from(rank, 12, type).view({3, 4}), layout), next},
                                          {from(rank, 7, type), next},
                                          {from(rank, 5, type), before},
                                          {from(rank, 0, type), before}},
                                         {{a, before}, {b, before}, {c, next}, {empty, next}});
        work.wait();
        EXPECT_TRUE(same(a, from(before, 12, type).view({3, 4}))) << c10::toString(type);
        EXPECT_TRUE(same(b, from(before, 7, type))) << c10::toString(type);
        EXPECT_TRUE(same(c, from(next, 5, type))) << c10::toString(type);
      }
    group.exchange_async({}, {}).wait();
    // Only two of the ranks: what a rank collects from another.
    auto got = at::zeros({6}, on(at::kFloat));
    if (rank == size - 1) group.exchange_async({{from(rank, 6, at::kFloat), 0}}, {}).wait();
    if (rank == 0) {
      group.exchange_async({}, {{got, size - 1}}).wait();
      EXPECT_TRUE(same(got, from(size - 1, 6, at::kFloat)));
    }
    EXPECT_THROW(group.exchange_async({{got, size}}, {}).wait(), CommError);
  });
}

TEST(Collectives, parameters_that_require_a_gradient_are_written) {
  on_each_group([](const Group& group) {
    for (const auto layout : kLayouts) {
      auto tensor = laid_out(values(group.rank(), {4, 3}, at::kFloat), layout).requires_grad_();
      group.broadcast(tensor, 0);
      EXPECT_TRUE(same(tensor.detach(), values(0, {4, 3}, at::kFloat)));
    }
  });
}

TEST(Collectives, sums_of_floats_are_bitwise_equal_for_any_split) {
  TRIREME_ONLY_OVER_MPI("NCCL sums in another order");
  const auto& group = world().group();
  // The values are not representable and differ much in size, so the order of summation shows in the last bits.
  const auto values_of = [](int rank, std::int64_t count) {
    return (at::arange(count, on()) * 0.37f + static_cast<float>(rank)).sin() * (rank == 1 ? 1e4f : 0.1f);
  };
  for (const std::int64_t count : {100, 20'000, 1'500'000}) {
    auto whole = values_of(group.rank(), count);
    group.all_reduce(whole);
    auto expected_sum = values_of(0, count);
    for (int r = 1; r < group.size(); ++r) expected_sum += values_of(r, count);
    EXPECT_TRUE(same(whole, expected_sum)) << count;
    auto pieces = values_of(group.rank(), count);
    for (std::int64_t at = 0; at < count; at += (count + 2) / 3)
      group.all_reduce(pieces.narrow(0, at, std::min((count + 2) / 3, count - at)));
    EXPECT_TRUE(same(pieces, whole)) << count;
  }
}

}  // namespace
}  // namespace trireme::tests
