// Groups of a mesh, and what CommStats counts for their calls.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/comm/mesh.h"
#include "tests/ranks/world.h"

namespace trireme::tests {
namespace {

TEST(Mesh, groups_hold_the_ranks_that_differ_along_their_axes) {
  auto& w = world();
  const int n = w.size();
  const int two = n % 2 == 0 ? 2 : 1;
  comm::Mesh mesh(w, {{"dp", n / two}, {"pp", 1}, {"tp", two}});
  EXPECT_EQ(mesh.coordinate("dp") * two + mesh.coordinate("tp"), w.rank());
  EXPECT_EQ(mesh.size("sp"), 1);
  EXPECT_EQ(mesh.coordinate("sp"), 0);
  EXPECT_FALSE(mesh.has("sp"));
  std::vector<int> tp, dp, all;
  for (int r = 0; r < n; ++r) {
    if (r / two == w.rank() / two) tp.push_back(r);
    if (r % two == w.rank() % two) dp.push_back(r);
    all.push_back(r);
  }
  const auto ranks_of = [&](const comm::Group& group) {  // from a collective, not from the group's list
    auto out = at::zeros({group.size()}, on(at::kInt));
    group.all_gather_into(out, at::full({1}, w.rank(), on(at::kInt)));
    const auto host = out.cpu();
    return std::vector<int>(host.const_data_ptr<int>(), host.const_data_ptr<int>() + host.numel());
  };
  EXPECT_EQ(ranks_of(mesh.group("tp")), tp);
  EXPECT_EQ(ranks_of(mesh.group("dp")), dp);
  EXPECT_EQ(ranks_of(mesh.group({"tp", "dp"})), all);
  EXPECT_EQ(mesh.group("pp").size(), 1);
  EXPECT_EQ(mesh.group("sp").size(), 1);
  const std::vector<int> only{w.rank()};
  EXPECT_EQ(mesh.group("sp").ranks(), only);
  for (int r = 0; r < n; ++r)
    if (const auto single = w.make_group({r}, "single"); single.valid()) {
      EXPECT_EQ(single.ranks(), only);
    }
  EXPECT_EQ(&mesh.group({"dp", "tp"}), &mesh.group({"dp", "tp"}));
  if (n == 4) {
    EXPECT_EQ(mesh.group({"tp", "dp"}).axis(), "dp_tp");
    EXPECT_EQ(mesh.formula(), "4 = dp 2 x pp 1 x tp 2");
  }
  EXPECT_THROW(comm::Mesh(w, {{"dp", n + 1}}), ConfigError);
}

TEST(CommStats, counts_each_call_with_its_payload_and_the_wire_bytes_of_a_ring) {
  auto& w = world();
  std::vector<int> all;
  for (int r = 0; r < w.size(); ++r) all.push_back(r);
  const auto group = w.make_group(all, "booked");
  const auto n = static_cast<std::uint64_t>(w.size());
  group.all_reduce(at::zeros({12}, on()));
  group.all_reduce(at::zeros({12}, on()));
  group.broadcast(at::zeros({10}, on(at::kByte)), 0);
  group.all_gather_into(at::zeros({12 * w.size()}, on()), at::zeros({12}, on()));
  group.reduce_scatter_into(at::zeros({12}, on()), at::zeros({12 * w.size()}, on()));
  group.barrier();
  const auto totals = w.comm_stats().totals();
  if (n == 1) {
    EXPECT_TRUE(
        std::none_of(totals.begin(), totals.end(), [](const auto& one) { return one.first.first == "booked"; }));
    return;
  }
  const auto expect = [&](const char* op, std::uint64_t calls, std::uint64_t elements, std::uint64_t bytes,
                          std::uint64_t wire) {
    const auto entry = totals.at({"booked", op});
    EXPECT_EQ(entry.calls, calls) << op;
    EXPECT_EQ(entry.payload_elements, elements) << op;
    EXPECT_EQ(entry.payload_bytes, bytes) << op;
    EXPECT_EQ(entry.wire_bytes, wire) << op;
  };
  expect("all_reduce", 2, 24, 96, 2 * 96 * (n - 1) / n);
  expect("broadcast", 1, 10, 10, 10);
  expect("all_gather", 1, 12 * n, 48 * n, 48 * (n - 1));
  expect("reduce_scatter", 1, 12 * n, 48 * n, 48 * (n - 1));
  expect("barrier", 1, 0, 0, 0);
}

}  // namespace
}  // namespace trireme::tests
