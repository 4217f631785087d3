// The work of operators, as a watch sees it on the CPU and on the meta device.
#include "core/plan/operator_watch.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/base/planned_device.h"
#include "core/plan/meta_kernels.h"

namespace trireme::plan {
namespace {

struct Counted {
  std::string name;
  Work work;
};

std::vector<Counted> seen_in(c10::DeviceType on, const std::function<void()>& run) {
  std::vector<Counted> out;
  const OperatorWatch watch(on, [&](const SeenOperator& seen) {
    if (seen.work.bytes > 0) out.push_back({std::string(seen.name), seen.work});
  });
  run();
  return out;
}

TEST(OperatorWatch, CountsEachOperatorOnceAndTheSameOnBothDevices) {
  const struct {
    const char* what;
    std::function<at::Tensor(const at::Tensor&)> run;
    std::vector<std::pair<const char*, Kind>> expected;
    double flops = 0;
  } cases[] = {
      {"views", [](const auto& x) { return x.view({-1}).detach(); }, {}},
      {"a product with a bias, which addmm copies",
       [](const auto& x) {
         return at::addmm(at::ones({8}, x.options()).expand({16, 8}), x, x.slice(0, 0, 8));
       },
       {{"aten::fill_", Kind::fill}, {"aten::addmm", Kind::product}},
       2. * 16 * 8 * 8},
      {"a scalar, which mul converts", [](const auto& x) { return x * 2.5; }, {{"aten::mul", Kind::pointwise}}},
      {"what is made of others",
       [](const auto& x) { return at::layer_norm(x, {8}); },
       {{"aten::native_layer_norm", Kind::norm}}},
      {"an operator in place",
       [](const auto& x) { return x.clone().zero_(); },
       {{"aten::copy_", Kind::copy}, {"aten::zero_", Kind::fill}}},
      {"a conversion to what it is", [](const auto& x) { return x.to(at::kFloat); }, {}},
      {"a conversion", [](const auto& x) { return x.to(at::kDouble); }, {{"aten::copy_", Kind::copy}}},
      {"GELU", [](const auto& x) { return at::gelu(x); }, {{"aten::gelu", Kind::activation}}},
      {"GELU by tanh", [](const auto& x) { return at::gelu(x, "tanh"); }, {{"aten::gelu", Kind::tanh}}},
  };
  const MetaKernels kernels;
  for (const auto& c : cases)
    for (const auto device : {c10::kCPU, c10::kMeta}) {
      SCOPED_TRACE(std::string(c.what) + (device == c10::kCPU ? ", CPU" : ", meta"));
      const auto x = at::ones({16, 8}, at::TensorOptions().device(device));
      const auto seen = seen_in(device, [&] { c.run(x); });
      double flops = 0;
      for (const auto& each : seen) flops += each.work.flops;
      EXPECT_EQ(flops, c.flops);
      ASSERT_EQ(seen.size(), c.expected.size()) << (seen.empty() ? "" : seen.back().name);
      for (std::size_t i = 0; i < seen.size(); ++i) {
        EXPECT_EQ(seen[i].name, c.expected[i].first);
        EXPECT_EQ(seen[i].work.kind, c.expected[i].second);
      }
    }
}

}  // namespace
}  // namespace trireme::plan
