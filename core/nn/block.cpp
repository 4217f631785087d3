#include "core/nn/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "core/base/error.h"

namespace trireme::nn {

Tensors Model::forward(Tensors inputs, const Context& context, const RunBlock& run) {
  for (const auto& block : blocks_)
    inputs = run ? run(block, std::move(inputs), context) : block->forward(std::move(inputs), context);
  return inputs;
}

Tensors Model::first_inputs(const NamedTensors& inputs) const {
  Tensors out;
  const auto names = input_names(), side = side_input_names();
  for (const auto& name : names) out.push_back(inputs[name]);
  if (!names.empty()) return out;
  for (const auto& [name, tensor] : inputs)
    if (std::find(side.begin(), side.end(), name) == side.end()) out.push_back(tensor);
  return out;
}

NamedTensors Model::side_inputs(const NamedTensors& inputs) const {
  NamedTensors out;
  for (const auto& name : side_input_names())
    if (const auto* tensor = inputs.find(name)) out.set(name, *tensor);
  return out;
}

std::string Model::name_in_modules(const std::string& parameter) const {
  for (const auto& naming : namings())
    if (const auto found = naming.of_modules ? naming.find(parameter) : std::nullopt) return found->stored;
  return parameter;
}

std::string Model::module_in_modules(const std::string& path) const {
  const std::string any = ".weight";  // a pattern's "**" needs a part
  const auto name = name_in_modules(path + any);
  return name.substr(0, name.size() - any.size());
}

void Model::keep_stage_blocks(std::vector<std::size_t> blocks, std::string axis) {
  TRIREME_CHECK(!stage_blocks_ && !blocks.empty() && blocks.back() < blocks_.size(),
                "these blocks cannot form a pipeline stage");
  stage_blocks_ = StageBlocks{std::move(blocks), std::move(axis)};
}

void Model::finish() {
  TRIREME_REQUIRE(!blocks_.empty(), "a model has no blocks; call add_block() before finish()");
  std::unordered_set<std::string> paths;
  std::unordered_set<const Layer*> named;
  const auto name = [&](Layer& layer, std::string path) {
    if (!named.insert(&layer).second) return;  // a shared layer keeps its first name
    TRIREME_REQUIRE(paths.insert(path).second, "two layers have the path \"{}\"; register one under another name",
                    path);
    layer.set_path(std::move(path));
  };
  named.insert(this);
  apply([&](const std::string& path, torch::nn::Module& module) {
    if (auto* layer = dynamic_cast<Layer*>(&module)) name(*layer, path);
  });
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    name(*blocks_[i], blocks_[i]->path().empty() ? fmt::format("blocks.{}", i) : blocks_[i]->path());

  // What the model's tree does not have would be neither saved nor moved.
  const auto check = [this](const char* kind, const std::vector<at::Tensor>& own, auto named_of) {
    std::unordered_set<const void*> known;
    for (const auto& tensor : own) known.insert(tensor.unsafeGetTensorImpl());
    for (const auto& block : blocks_)
      for (const auto& item : named_of(*block))
        TRIREME_REQUIRE(known.count(item.value().unsafeGetTensorImpl()) != 0,
                        "block \"{0}\" has the {1} \"{2}\", which is not among the model's {1}s; register the block, "
                        "or the layer that has the {1}, as a submodule of the model",
                        block->path(), kind, item.key());
  };
  check("parameter", parameters(), [](const Block& block) { return block.named_parameters(); });
  check("buffer", buffers(), [](const Block& block) { return block.named_buffers(); });
}

}  // namespace trireme::nn
