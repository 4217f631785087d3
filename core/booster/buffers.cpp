#include "core/booster/buffers.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <map>
#include <string>

#include "core/nn/block.h"
#include "core/nn/parameters.h"

namespace trireme {
namespace {

/// The ranks that run the same blocks as this one: they differ along any axis but the pipeline's.
comm::Group ranks_with_same_blocks(const nn::Model& model, comm::Mesh& mesh) {
  std::vector<std::string> axes;
  for (const auto& axis : mesh.axes())
    if (mesh.size(axis) > 1 && !(model.stage_blocks() && model.stage_blocks()->axis == axis)) axes.push_back(axis);
  return axes.empty() ? comm::Group::alone("buffers", mesh.world().rank(), nullptr) : mesh.group(axes);
}

}  // namespace

BufferSync::BufferSync(nn::Model& model, comm::Mesh& mesh, bool each_step) : each_step_(each_step) {
  if (model.buffers().empty()) return;  // on every rank: the list does not depend on the stage
  group_ = ranks_with_same_blocks(model, mesh);
  if (group_.size() == 1) return;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (auto& buffer : nn::buffers(model)) by_dtype[buffer.value.scalar_type()].push_back(std::move(buffer.value));
  for (auto& [dtype, list] : by_dtype) buffers_.push_back(std::move(list));
  launch();
  finish();
}

void BufferSync::start() {
  if (each_step_) launch();
}

void BufferSync::launch() {
  const at::NoGradGuard no_grad;
  pending_works_.clear();  // of a step that was not finished
  packed_.clear();
  for (const auto& list : buffers_) {
    std::vector<at::Tensor> flat;
    for (const auto& buffer : list) flat.push_back(buffer.reshape({-1}));
    packed_.push_back(at::cat(flat));
    pending_works_.push_back(group_.broadcast_async(packed_.back(), 0));
  }
}

void BufferSync::finish() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < pending_works_.size(); ++i) {
    pending_works_[i].wait();
    std::int64_t begin = 0;
    for (auto& buffer : buffers_[i]) {
      buffer.copy_(packed_[i].narrow(0, begin, buffer.numel()).view(buffer.sizes()));
      begin += buffer.numel();
    }
  }
  pending_works_.clear();
  packed_.clear();
}

BufferUndo::BufferUndo(nn::Model& model) {
  const at::NoGradGuard no_grad;
  for (auto& buffer : nn::buffers(model)) before_.emplace_back(buffer.value, buffer.value.detach().clone());
}

void BufferUndo::finish(const at::Tensor& skipped) {
  if (before_.empty()) return;
  const at::NoGradGuard no_grad;
  const auto skip = skipped.ne(0);
  for (auto& [buffer, before] : before_) buffer.copy_(before.where(skip, buffer));
}

}  // namespace trireme
