#include "core/nn/layers/side_inputs.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/nn/block.h"
#include "core/nn/layers/attention.h"

namespace trireme::nn {

std::string unread_side_input(Model& model, const DataSpec& data) {
  auto given = model.input_names();
  if (given.empty()) return "";  // the first block receives all inputs
  const auto side = model.side_input_names();
  given.insert(given.end(), side.begin(), side.end());
  std::string problem;
  model.apply([&](torch::nn::Module& module) {
    const auto* attention = dynamic_cast<const SelfAttention*>(&module);
    if (attention == nullptr) return;
    for (const auto& input : data.inputs)
      if (problem.empty() && attention->reads(input.name) &&
          std::find(given.begin(), given.end(), input.name) == given.end())
        problem = fmt::format(
            "the data have \"{0}\", which the attention layer \"{1}\" reads, but the model does not pass it on; return "
            "\"{0}\" in Model::side_input_names(), or choose data without it",
            input.name, attention->path());
  });
  return problem;
}

}  // namespace trireme::nn
