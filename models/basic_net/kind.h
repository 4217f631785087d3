// basic_net: the small convolutional network of PyTorch's MNIST example, for square images of any size. Names and
// arithmetic are those of that example's module: conv1, conv2, fc1, fc2.
//
// Blocks: the features (3x3 convolution to 32 channels, ReLU, 3x3 convolution to 64, ReLU, 2x2 max-pool, dropout), the
// hidden layer (linear to 128, ReLU, dropout), the classifier. The outputs are logits: the loss has the log-softmax.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/nn/model_kind.h"
#include "models/parts.h"

namespace trireme::models::basic_net {

struct Options {
  std::optional<double> dropout, hidden_dropout;  ///< resolve() sets them

  // Set from the data; not keys of [model].
  std::int64_t channels = 1, height = 0, width = 0, classes = 0;
  std::vector<std::string> class_names;
};

const Fields<Options>& fields();

class Kind : public nn::ModelKindOf<Options> {
 public:
  Kind() : ModelKindOf(basic_net::fields()) {}
  [[nodiscard]] std::string default_task(const nn::DataSpec& data) const override { return task_of_labels(data); }
  [[nodiscard]] std::string head_prefix() const override { return "fc2."; }

 protected:
  void resolve_for(Options& options, const nn::DataSpec& data) const override;
  void write_to(const Options& options, nlohmann::json& config) const override;
  [[nodiscard]] std::unique_ptr<nn::Model> make_model(const Options& options) const override;
};

}  // namespace trireme::models::basic_net
