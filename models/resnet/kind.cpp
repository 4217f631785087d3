#include "models/resnet/kind.h"

#include <fmt/format.h>

#include "core/base/bounds.h"
#include "core/base/error.h"
#include "models/resnet/resnet.h"

namespace trireme::models::resnet {

nlohmann::json Kind::recognized(const nlohmann::json& values, const std::string& file) const {
  if (!values.is_object()) return nullptr;
  const auto architecture = values.value("architecture", nlohmann::json());
  if (!architecture.is_string() && values.value("model_type", nlohmann::json()) == "resnet")
    throw ConfigError(fmt::format(
        "model.weights: {} is of transformers' ResNet, whose tensors have other names; use torchvision's or timm's "
        "weights",
        file));
  return architecture.is_string() && architecture.get<std::string>().starts_with("resnet") ? values : nlohmann::json();
}

void Kind::read_from(Options& o, const nn::HfConfig& config) const {
  const auto name = config.value("architecture").get<std::string>();
  std::optional<std::int64_t> depth;
  for (const std::int64_t known : {18, 34, 50, 101, 152})
    if (name == fmt::format("resnet{}", known)) depth = known;
  if (!depth) config.refuse(fmt::format("is for \"{}\"; only resnet18, 34, 50, 101 and 152 are supported", name));
  if (o.depth && *o.depth != *depth)
    throw ConfigError(
        fmt::format("model.depth: {}, but {} says architecture = \"{}\"; leave depth out, or choose other weights",
                    *o.depth, config.file(), name));
  o.depth = depth;
  o.weights_channels = config.read<std::int64_t>("num_channels", size_rules());
}

void Kind::write_to(const Options& o, nlohmann::json& config) const {
  config.erase("model_type");  // transformers' ResNet has other tensors
  config.update({{"architecture", fmt::format("resnet{}", *o.depth)},
                 {"num_classes", o.classes},
                 {"num_features", (depth_of(*o.depth).bottleneck ? 32 : 8) * *o.width},
                 {"num_channels", o.channels}});
  if (*o.width == 64) config.erase("width");
  nn::add_labels(config, o.classes, o.class_names);
}

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<ResNet>(options); }

}  // namespace trireme::models::resnet
