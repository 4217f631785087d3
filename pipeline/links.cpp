#include "pipeline/links.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace trireme::pipeline {

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

}  // namespace trireme::pipeline
