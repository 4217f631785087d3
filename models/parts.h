// What the models' definitions share.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/nn/data_spec.h"
#include "core/nn/layer.h"

namespace trireme::models {

/// Adds a module whose only purpose is a common name prefix for its children.
inline torch::nn::Module& submodule(torch::nn::Module& parent, const std::string& name) {
  return *parent.register_module(name, std::make_shared<torch::nn::Module>(name));
}

/// Sets an option that is unset.
template <class T>
void fill(std::optional<T>& option, T value) {
  if (!option) option = value;
}

/// The text of the key attention_dropout. `otherwise`: its value without loaded weights.
inline std::string attention_dropout_text(const std::string& fallback) {
  return fmt::format(
      "Dropout probability of attention probabilities. Above 0, attention scores are materialized in memory, which is "
      "slower than the fused kernels. Unset: that of the loaded weights, else {}.",
      fallback);
}

/// ModelKind::default_task() of a model for labels: numbers are predicted, and booleans say which of several labels a
/// sample has.
inline std::string task_of_labels(const nn::DataSpec& data) {
  const auto* labels = data.target(nn::kLabels);
  if (labels == nullptr) return "classification";
  return at::isFloatingType(labels->dtype) ? "regression"
         : labels->dtype == at::kBool      ? "multi_label"
                                           : "classification";
}

/// The input of a model of images, [channels, height, width].
inline constexpr const char* kPixels = "pixel_values";

/// For models of images. @throws ConfigError when the data have none of one size
inline const nn::SampleTensor& pixels_of(const nn::DataSpec& data, const std::string& model) {
  const auto& pixels = data.required_input(kPixels, fmt::format("model \"{}\"", model));
  if (pixels.shape.size() != 3 || pixels.varies())
    throw ConfigError(fmt::format("model \"{}\" reads {} [channels, height, width], but the data have {}", model,
                                  kPixels, pixels.text()));
  return pixels;
}

/// For models whose heads share the hidden vector. @throws ConfigError
inline void check_heads(std::int64_t hidden_size, std::int64_t heads) {
  if (hidden_size % heads != 0)
    throw ConfigError(
        fmt::format("model.hidden_size: {} is not a multiple of model.num_heads = {}", hidden_size, heads));
}

/// For models with one row of outputs for each sample. @throws ConfigError
inline void check_one_output(const nn::DataSpec& data, const std::string& model) {
  const auto* labels = data.target(nn::kLabels);
  const bool per_token = labels != nullptr && !labels->shape.empty() && labels->shape != std::vector{data.classes};
  if (data.classes < 1 || per_token)
    throw ConfigError(
        fmt::format("model \"{}\" has one row of outputs for each sample, which does not fit train.task and "
                    "the data's {}; choose another train.task",
                    model, labels == nullptr ? "labels" : labels->text()));
}

/// The number of token ids: that of the data's tokenizer unless it is set. @throws ConfigError when the data have more
inline void fill_vocabulary(std::optional<std::int64_t>& vocab_size, const nn::DataSpec& data) {
  if (data.vocabulary == 0) return;
  fill(vocab_size, data.vocabulary);
  if (*vocab_size < data.vocabulary)
    throw ConfigError(fmt::format(
        "model.vocab_size: {} is fewer than the {} tokens of the data's tokenizer; leave it out, or choose the "
        "tokenizer of the weights",
        *vocab_size, data.vocabulary));
}

/// Names in Hugging Face's configurations of the activations that an MLP may have; "swish" is "silu".
inline std::vector<std::string> hidden_acts() {
  return {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"};
}

/// For models of text: the data have input_ids [tokens], and no sample has more than the model's positions.
/// @throws ConfigError
inline void check_token_ids(const nn::DataSpec& data, const std::string& model, std::int64_t max_positions) {
  const auto& ids = data.required_input("input_ids", fmt::format("model \"{}\"", model));
  if (ids.shape.size() != 1)
    throw ConfigError(fmt::format("model \"{}\" reads input_ids [tokens], but the data have {}", model, ids.text()));
  if (ids.shape[0] > max_positions)
    throw ConfigError(
        fmt::format("model.max_positions: {} tokens are fewer than the {} of the data's samples; raise "
                    "it, or shorten the samples",
                    max_positions, ids.shape[0]));
  if (data.longest > max_positions)
    throw ConfigError(
        fmt::format("{}: the longest sample has {} tokens, but the model has {} positions; set it to at most {}, or, "
                    "for a model with new weights, raise model.max_positions",
                    data.longest_key, data.longest, max_positions, max_positions));
}

/// The same for a batch of samples whose length varies. @throws DataError
inline void check_length(const at::Tensor& ids, std::int64_t max_positions) {
  if (ids.size(1) > max_positions)
    throw DataError(
        fmt::format("a batch has {} tokens a sample, but this model has {} positions; shorten the samples, "
                    "or raise model.max_positions",
                    ids.size(1), max_positions));
}

}  // namespace trireme::models
