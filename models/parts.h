// What the models' definitions share.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/nn/data_spec.h"
#include "core/nn/layer.h"

namespace trireme::models {

/// Adds a module whose only purpose is a common name prefix for its children.
inline torch::nn::Module& submodule(torch::nn::Module& parent, const std::string& name) {
  return *parent.register_module(name, std::make_shared<torch::nn::Module>(name));
}

/// Sets an option that nobody has set.
template <class T>
void fill(std::optional<T>& option, T value) {
  if (!option) option = value;
}

/// For models of text: the data have input_ids [tokens], no more than the model's positions. @throws ConfigError
inline void check_token_ids(const nn::DataSpec& data, const std::string& model, std::int64_t max_positions) {
  const auto& ids = data.required_input("input_ids", fmt::format("model \"{}\"", model));
  if (ids.shape.size() != 1)
    throw ConfigError(fmt::format("model \"{}\" reads input_ids [tokens], but the data have {}", model, ids.text()));
  if (ids.shape[0] > max_positions)
    throw ConfigError(
        fmt::format("model.max_positions: {} tokens are fewer than the {} of the data's samples; raise "
                    "it, or shorten the samples",
                    max_positions, ids.shape[0]));
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
