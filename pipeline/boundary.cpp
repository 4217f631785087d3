#include "pipeline/boundary.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "core/base/error.h"
#include "core/nn/autograd/backward_hook.h"

namespace trireme::pipeline {
namespace {

constexpr std::int64_t kMaxSpecIntegers = 1000;

std::string text(const TensorSpec& spec) {
  return fmt::format("{} [{}]", c10::getDtypeNames(spec.dtype).first, fmt::join(spec.shape, ", "));
}

}  // namespace

Boundary boundary_of(const Tensors& tensors) {
  Boundary out;
  for (const auto& tensor : tensors)
    out.push_back({tensor.sizes().vec(), tensor.scalar_type(), tensor.requires_grad()});
  return out;
}

Tensors zeros(const Boundary& boundary, c10::Device device) {
  Tensors out;
  for (const auto& spec : boundary)
    out.push_back(
        at::zeros(spec.shape, at::TensorOptions(spec.dtype).device(device)).set_requires_grad(spec.requires_grad));
  return out;
}

Tensors as_non_leaves(Tensors inputs) {
  return nn::register_backward_hook(std::move(inputs), [](nn::BackwardPart) {});
}

void check(const Boundary& agreed, const Tensors& given) {
  TRIREME_CHECK(agreed.size() == given.size(), "a stage returned {} tensors, but the ranks agreed on {}", given.size(),
                agreed.size());
  const auto got = boundary_of(given);
  for (std::size_t i = 0; i < agreed.size(); ++i)
    TRIREME_CHECK(
        got[i].shape == agreed[i].shape && got[i].dtype == agreed[i].dtype,
        "tensor {} of a stage is {}, but the ranks agreed on {}: output shapes may depend only on the inputs' shapes",
        i, text(got[i]), text(agreed[i]));
}

BoundaryRule::BoundaryRule(const Boundary& of_two, const Boundary& of_three) : two_(of_two) {
  TRIREME_CHECK(of_two.size() == of_three.size(), "a stage returns {} tensors for 2 samples, but {} for 3",
                of_two.size(), of_three.size());
  for (std::size_t i = 0; i < of_two.size(); ++i) {
    TRIREME_CHECK(of_two[i].dtype == of_three[i].dtype && of_two[i].shape.size() == of_three[i].shape.size(),
                  "tensor {} of a stage is {} for 2 samples, but {} for 3", i, text(of_two[i]), text(of_three[i]));
    auto& each = each_.emplace_back();
    for (std::size_t d = 0; d < of_two[i].shape.size(); ++d) each.push_back(of_three[i].shape[d] - of_two[i].shape[d]);
  }
}

Boundary BoundaryRule::of(std::int64_t samples) const {
  auto out = two_;
  for (std::size_t i = 0; i < out.size(); ++i)
    for (std::size_t d = 0; d < out[i].shape.size(); ++d) out[i].shape[d] += each_[i][d] * (samples - 2);
  return out;
}

void send_spec(const Boundary& boundary, const comm::Group& group, int peer, c10::Device device) {
  std::vector<std::int64_t> encoded{static_cast<std::int64_t>(boundary.size())};
  for (const auto& spec : boundary) {
    encoded.insert(encoded.end(), {static_cast<std::int64_t>(spec.dtype), spec.requires_grad ? 1 : 0,
                                   static_cast<std::int64_t>(spec.shape.size())});
    encoded.insert(encoded.end(), spec.shape.begin(), spec.shape.end());
  }
  TRIREME_CHECK(encoded.size() <= kMaxSpecIntegers, "{} tensors are too many between two stages", boundary.size());
  encoded.resize(kMaxSpecIntegers);
  group.send(at::tensor(encoded, at::kLong).to(device), peer);
}

Boundary recv_spec(const comm::Group& group, int peer, c10::Device device) {
  auto message = at::zeros({kMaxSpecIntegers}, at::TensorOptions(at::kLong).device(device));
  group.recv(message, peer);
  message = message.cpu();
  const auto* next = message.const_data_ptr<std::int64_t>();
  Boundary out(static_cast<std::size_t>(*next++));
  for (auto& spec : out) {
    spec.dtype = static_cast<at::ScalarType>(*next++);
    spec.requires_grad = *next++ != 0;
    const auto dims = *next++;
    spec.shape.assign(next, next + dims);
    next += dims;
  }
  return out;
}

}  // namespace trireme::pipeline
