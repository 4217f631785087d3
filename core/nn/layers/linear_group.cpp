#include "core/nn/layers/linear_group.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>

#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/nn/layers/lora.h"

namespace trireme::nn {
namespace {

std::vector<std::int64_t> sizes_of(const std::vector<std::shared_ptr<Linear>>& layers) {
  std::vector<std::int64_t> sizes;
  for (const auto& layer : layers) sizes.push_back(layer->options().out);
  return sizes;
}

}  // namespace

LinearGroup::LinearGroup(std::vector<std::shared_ptr<Linear>> layers)
    : forward([this](const at::Tensor& x, const Context& context, std::int64_t leading) {
        return compute(x, context, leading);
      }),
      parts_(std::move(layers)),
      sizes_(sizes_of(parts_)) {}

LinearGroup::LinearGroup(std::shared_ptr<Linear> layer, std::vector<std::int64_t> sizes)
    : LinearGroup(std::vector<std::shared_ptr<Linear>>{std::move(layer)}) {
  const auto& fused = *parts_.front();
  TRIREME_CHECK(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == fused.options().out,
                "a fused layer has {} features, which are not those of its outputs", fused.options().out);
  sizes_ = std::move(sizes);
}

std::vector<Unary*> LinearGroup::layers() const {
  std::vector<Unary*> out;
  for (const auto& part : parts_) out.push_back(part.get());
  return out;
}

void LinearGroup::cut(const std::vector<shard::Range>& rows, const std::string& axis) {
  TRIREME_CHECK(rows.size() == sizes_.size(), "{} ranges for {} outputs", rows.size(), sizes_.size());
  const auto cut_layer = [&](Linear& layer, const std::vector<shard::Range>& ranges) {
    layer.cut("weight", 0, ranges, axis);
    if (layer.options().bias) layer.cut("bias", 0, ranges, axis);
    if (layer.adapter() != nullptr) layer.adapter()->b->cut("weight", 0, ranges, axis);
  };
  std::vector<shard::Range> ranges;
  std::int64_t begin = 0;  // of the output in the fused layer
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!fused()) cut_layer(*parts_[i], {rows[i]});
    ranges.push_back({begin + rows[i].begin, begin + rows[i].end});
    begin += sizes_[i];
    sizes_[i] = rows[i].size();
  }
  if (fused()) cut_layer(*parts_.front(), ranges);
}

std::vector<LinearGroup::Weights> LinearGroup::weights() const {
  std::vector<Weights> out;
  if (!fused()) {
    for (const auto& part : parts_) out.push_back({part->weight, part->bias});
    return out;
  }
  const auto& layer = *parts_.front();
  for (auto& weight : layer.weight.split_with_sizes(sizes_, 0)) out.push_back({std::move(weight), {}});
  if (!layer.bias.defined()) return out;
  const auto biases = layer.bias.split_with_sizes(sizes_, 0);
  for (std::size_t i = 0; i < out.size(); ++i) out[i].bias = biases[i];
  return out;
}

std::vector<at::Tensor> LinearGroup::parameters() const {
  std::vector<at::Tensor> out;
  for (const auto& part : parts_)
    for (auto& parameter : part->parameters()) out.push_back(std::move(parameter));
  return out;
}

std::vector<LinearGroup::OutputAdapter> LinearGroup::adapters() const {
  std::vector<OutputAdapter> out;
  for (const auto& part : parts_) {
    const auto* adapter = part->adapter();
    out.push_back({adapter, adapter == nullptr ? at::Tensor() : adapter->b->weight});
  }
  if (!fused()) return out;
  const auto whole = std::exchange(out, std::vector<OutputAdapter>(sizes_.size())).front();
  if (whole.of == nullptr) return out;
  const auto rows = whole.weight.split_with_sizes(sizes_, 0);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = {whole.of, rows[i]};
  return out;
}

std::vector<at::Tensor> LinearGroup::split(const at::Tensor& y) const { return y.split_with_sizes(sizes_, -1); }

std::vector<at::Tensor> LinearGroup::compute(const at::Tensor& x, const Context& context, std::int64_t leading) const {
  const auto read = [&](const at::Tensor& all, std::size_t output) {
    return leading == 0 || output > 0 ? all : all.narrow(1, 0, leading);
  };
  std::vector<at::Tensor> out;
  if (!fused()) {
    for (const auto& part : parts_) out.push_back(part->forward(read(x, out.size()), context));
    return out;
  }
  const auto& layer = *parts_.front();
  if (leading == 0) return split(layer.forward(x, context));
  const auto reduced = layer.adapter() == nullptr ? at::Tensor() : layer.adapter()->reduce(x, context);
  const auto added = adapters();
  for (const auto& [weight, bias] : weights()) {
    const auto i = out.size();
    auto y = at::linear(read(x, i), weight, bias);
    if (reduced.defined()) y = y + at::linear(read(reduced, i), added[i].weight);
    out.push_back(layer.finish(std::move(y), {}));
  }
  return out;
}

}  // namespace trireme::nn
