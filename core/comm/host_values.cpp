#include "core/comm/host_values.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace trireme::comm {
namespace {

at::Tensor number(std::int64_t value) { return at::tensor({value}, at::kLong); }

/// The text, followed by zeros up to `size` bytes.
at::Tensor bytes_of(const std::string& text, std::int64_t size) {
  auto bytes = at::zeros({size}, at::kByte);
  text.copy(static_cast<char*>(bytes.data_ptr()), text.size());
  return bytes;
}

std::string text_of(const at::Tensor& bytes, std::int64_t length) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(length)};
}

/// Gathers every rank's tensor on rank 0; `sizes`: their numbers of elements, on rank 0.
std::vector<at::Tensor> gather(const Group& group, const at::Tensor& mine, const std::vector<std::int64_t>& sizes) {
  std::vector<at::Tensor> all;
  for (const auto size : sizes) all.push_back(at::empty({size}, mine.options()));
  group.gather(all, mine, 0);
  return all;
}

/// Whether NCCL executes the group's operations. It gathers only tensors of equal size.
bool is_nccl(const Group& group) {
  const auto ranks = group.process_group();
  return ranks && ranks->getBackendType() == c10d::ProcessGroup::BackendType::NCCL;
}

/// The tensor is a copy of the values: when the operation fails, it may outlive them.
template <class T>
std::vector<T> reduced(const Group& group, const std::vector<T>& values, ReduceOp op) {
  const at::Tensor tensor = at::tensor(values, c10::CppTypeToScalarType<T>::value);
  group.all_reduce(tensor, op);
  const auto* result = tensor.const_data_ptr<T>();
  return {result, result + values.size()};
}

}  // namespace

// Padding the texts for every transport would send more than their lengths, and cost an all-reduce.
std::vector<std::string> gather_text(const Group& group, const std::string& text) {
  const auto ranks = static_cast<std::size_t>(group.rank() == 0 ? group.size() : 0);
  auto size = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> lengths;
  for (const auto& length : gather(group, number(size), std::vector<std::int64_t>(ranks, 1)))
    lengths.push_back(length.item<std::int64_t>());
  auto sizes = lengths;
  if (is_nccl(group)) {
    size = reduce_value(group, size, ReduceOp::max);
    sizes.assign(ranks, size);
  }
  std::vector<std::string> out;
  const auto all = gather(group, bytes_of(text, size), sizes);
  for (std::size_t r = 0; r < all.size(); ++r) out.push_back(text_of(all[r], lengths[r]));
  return out;
}

std::vector<std::string> all_gather_text(const Group& group, const std::string& text) {
  const auto lengths = all_gather_values(group, {static_cast<std::int64_t>(text.size())});
  const auto longest = std::max_element(lengths.begin(), lengths.end())->front();
  const auto all = at::empty({group.size(), longest}, at::kByte);
  group.all_gather_into(all, bytes_of(text, longest));
  std::vector<std::string> out;
  for (std::size_t r = 0; r < lengths.size(); ++r)
    out.push_back(text_of(all[static_cast<std::int64_t>(r)], lengths[r].front()));
  return out;
}

std::string broadcast_text(const Group& group, const std::string& text, int root) {
  const auto size = broadcast_value(group, static_cast<std::int64_t>(text.size()), root);
  const auto bytes = bytes_of(group.rank() == root ? text : "", size);
  group.broadcast(bytes, root);
  return text_of(bytes, size);
}

std::int64_t reduce_value(const Group& group, std::int64_t value, ReduceOp op) {
  return reduced<std::int64_t>(group, {value}, op).front();
}
double reduce_value(const Group& group, double value, ReduceOp op) {
  return reduced<double>(group, {value}, op).front();
}

std::vector<std::int64_t> reduce_values(const Group& group, const std::vector<std::int64_t>& values, ReduceOp op) {
  return reduced(group, values, op);
}
std::vector<double> reduce_values(const Group& group, const std::vector<double>& values, ReduceOp op) {
  return reduced(group, values, op);
}

bool any_rank(const Group& group, bool mine) { return reduce_value(group, std::int64_t{mine}, ReduceOp::max) != 0; }
bool every_rank(const Group& group, bool mine) { return reduce_value(group, std::int64_t{mine}, ReduceOp::min) != 0; }

std::int64_t broadcast_value(const Group& group, std::int64_t value, int root) {
  const auto tensor = number(value);
  group.broadcast(tensor, root);
  return tensor.item<std::int64_t>();
}

std::vector<std::vector<std::int64_t>> all_gather_values(const Group& group, const std::vector<std::int64_t>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  const auto all = at::empty({group.size(), count}, at::kLong);
  group.all_gather_into(all, at::tensor(values, at::kLong));
  std::vector<std::vector<std::int64_t>> out;
  const auto* row = all.const_data_ptr<std::int64_t>();
  for (int r = 0; r < group.size(); ++r, row += count) out.emplace_back(row, row + count);
  return out;
}

}  // namespace trireme::comm
