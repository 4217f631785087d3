// vit_logits MODEL_FOLDER INPUTS OUT: reads a model folder as `trireme` does, and writes the logits of INPUTS'
// "pixel_values" (safetensors) to OUT. For tests/golden/check/check_export.py.
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

void run(const std::string& folder, const std::string& inputs, const std::string& out) {
  const at::NoGradGuard no_grad;
  const auto pixels = SafeTensorsFile(inputs).read("pixel_values");
  const auto config = checkpoint::read_beside_weights(folder);
  const auto kind = models::all_models().at("vit");
  const auto options = kind->default_options();
  if (config.is_null() || !kind->from_hf(options.get(), config, folder))
    throw CheckpointError(folder + " holds no vit");
  kind->resolve(options.get(), {.inputs = {{"pixel_values", at::kFloat, pixels.sizes().slice(1).vec()}},
                                .classes = static_cast<std::int64_t>(config.at("id2label").size())});
  const auto model = kind->make(options.get());
  nn::materialize(*model, 0, pixels.scalar_type(), at::kCPU);
  auto parameters = nn::parameters(*model);
  checkpoint::load_weights(folder, parameters, "", Log());
  checkpoint::write_safetensors(out, {{"logits", model->forward({pixels}, {}).at(0)}});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: vit_logits MODEL_FOLDER INPUTS OUT\n");
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
