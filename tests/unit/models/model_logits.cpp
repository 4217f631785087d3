// model_logits MODEL_FOLDER INPUTS OUT: reads the folder of a model as `trireme` does, and writes the logits of INPUTS
// (safetensors: "pixel_values", or "input_ids" and side inputs) to OUT, in float64. For
// tests/golden/check/check_export.py and check_text_export.py.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <exception>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/weights/weights.h"
#include "core/nn/block.h"
#include "core/nn/parameters.h"
#include "models/registry.h"

using namespace trireme;

namespace {

/// What the model is for, by its architecture: classes of an image, of a text, of its tokens, or token ids.
nn::DataSpec spec_of(const nlohmann::json& config, const nn::NamedTensors& inputs) {
  if (const auto* pixels = inputs.find("pixel_values"))
    return {.inputs = {{"pixel_values", at::kFloat, pixels->sizes().slice(1).vec()}},
            .classes = static_cast<std::int64_t>(config.at("id2label").size())};
  const auto architecture = config.at("architectures").at(0).get<std::string>();
  nn::DataSpec spec{.inputs = {{"input_ids", at::kLong, {-1}}}, .targets = {{nn::kLabels, at::kLong, {-1}}}};
  if (architecture.find("Classification") != std::string::npos)
    spec.classes = static_cast<std::int64_t>(config.at("id2label").size());
  if (architecture.find("SequenceClassification") != std::string::npos) spec.targets[0].shape.clear();
  return spec;
}

void run(const std::string& folder, const std::string& inputs, const std::string& out) {
  const at::NoGradGuard no_grad;
  const auto config = checkpoint::read_beside_weights(folder);
  if (config.is_null()) throw CheckpointError(folder + " holds no config.json");
  std::shared_ptr<const nn::ModelKind> kind;
  std::shared_ptr<void> options;
  const auto all = models::all_models();
  for (const auto& name : all.names()) {
    if (kind != nullptr) break;
    options = all.at(name)->default_options();
    if (all.at(name)->from_hf(options.get(), config, folder)) kind = all.at(name);
  }
  if (kind == nullptr) throw CheckpointError(folder + " holds no model that trireme knows");
  const SafeTensorsFile file(inputs);
  nn::NamedTensors tensors;
  for (const auto& [name, entry] : file.tensors()) tensors.set(name, file.read(name));
  kind->resolve(options.get(), spec_of(config, tensors));
  const auto model = kind->make(options.get());
  nn::materialize(*model, 0, at::kDouble, at::kCPU);
  checkpoint::load_weights(folder, nn::parameters(*model), "", Log(), checkpoint::other_tensors(*model));
  nn::Context context{.side = model->side_inputs(tensors)};
  if (const auto* ids = tensors.find("input_ids")) context.tokens = ids->size(1);
  checkpoint::write_safetensors(out, {{"logits", model->forward(model->first_inputs(tensors), context).at(0)}});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: model_logits MODEL_FOLDER INPUTS OUT\n");
    return 2;
  }
  try {
    run(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
