#include "pipeline/links.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

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

Tensors Incoming::take() {
  for (auto& work : works_) work.wait();
  works_.clear();
  return std::exchange(tensors_, {});
}

std::vector<int> meeting_order(int rank, int size) {
  std::vector<int> peers;
  const auto add = [&](int peer) {
    if (peer >= 0 && peer < size) peers.push_back(peer);
  };
  const bool even = rank % 2 == 0;
  add(even ? rank + 1 : rank - 1);
  add(even ? rank - 1 : rank + 1);
  if (size > 2 && rank == 0) add(size - 1);
  if (size > 2 && rank == size - 1) add(0);
  return peers;
}

Links::Links(comm::Mesh& mesh, const std::string& axis)
    : up_(mesh.group(axis)), down_(mesh.separate_group(axis)), device_(mesh.world().device()) {
  for (const int peer : meeting_order(rank(), size())) meet(peer);
}

/// Exchanges one message in each direction.
void Links::meet(int peer) {
  auto token = at::zeros({1}, at::TensorOptions(at::kByte).device(device_));
  for (const bool up : {true, false})
    if (up == (peer > rank()))
      to(peer).send(token, peer);
    else
      from(peer).recv(token, peer);
}

void Links::send(int peer, const Tensors& tensors) {
  while (!sent_.empty() && sent_.front().done()) {
    sent_.front().wait();
    sent_.pop_front();
  }
  for (const auto& tensor : tensors)
    if (tensor.numel() > 0) sent_.push_back(to(peer).send_async(tensor.detach().contiguous(), peer));
}

Incoming Links::receive(int peer, const Boundary& boundary) {
  Tensors tensors;
  std::vector<comm::Work> works;
  for (const auto& spec : boundary) {
    tensors.push_back(at::empty(spec.shape, at::TensorOptions(spec.dtype).device(device_)));
    if (tensors.back().numel() > 0) works.push_back(from(peer).recv_async(tensors.back(), peer));
  }
  return {std::move(tensors), std::move(works)};
}

void Links::finish() {
  for (auto& work : sent_) work.wait();
  sent_.clear();
}

void Links::send_spec(int peer, const Boundary& boundary) {
  std::vector<std::int64_t> encoded{static_cast<std::int64_t>(boundary.size())};
  for (const auto& spec : boundary) {
    encoded.insert(encoded.end(), {static_cast<std::int64_t>(spec.dtype), spec.requires_grad ? 1 : 0,
                                   static_cast<std::int64_t>(spec.shape.size())});
    encoded.insert(encoded.end(), spec.shape.begin(), spec.shape.end());
  }
  TRIREME_CHECK(encoded.size() <= kMaxSpecIntegers, "{} tensors are too many between two stages", boundary.size());
  encoded.resize(kMaxSpecIntegers);
  to(peer).send(at::tensor(encoded, at::kLong), peer);
}

Boundary Links::recv_spec(int peer) {
  const auto message = at::zeros({kMaxSpecIntegers}, at::kLong);
  from(peer).recv(message, peer);
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
