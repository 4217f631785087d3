#include "models/resnet/kind.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/text.h"
#include "models/hf_config.h"
#include "models/resnet/resnet.h"

namespace trireme::models::resnet {

bool Kind::from_hf(void* options, const nlohmann::json& values, const std::string& file) const {
  if (!values.is_object()) return false;
  const HfConfig config(resnet::fields(), values, file);
  const auto architecture = values.value("architecture", nlohmann::json());
  if (!architecture.is_string()) {
    if (values.value("model_type", nlohmann::json()) == "resnet")
      config.refuse("is of transformers' ResNet, whose tensors have other names; use torchvision's or timm's weights");
    return false;
  }
  const auto name = architecture.get<std::string>();
  if (!name.starts_with("resnet")) return false;
  std::optional<std::int64_t> depth;
  for (const std::int64_t known : {18, 34, 50, 101, 152})
    if (name == fmt::format("resnet{}", known)) depth = known;
  if (!depth) config.refuse(fmt::format("is for \"{}\"; only resnet18, 34, 50, 101 and 152 are supported", name));
  auto& o = *static_cast<Options*>(options);
  if (o.depth && *o.depth != *depth)
    throw ConfigError(
        fmt::format("model.depth: {}, but {} says architecture = \"{}\"; leave depth out, or choose other weights",
                    *o.depth, file, name));
  o.depth = depth;
  auto complete = values;
  complete.emplace("width", 64);
  HfConfig(resnet::fields(), std::move(complete), file).take("width", "width", o.width);
  config.take("num_channels", "channels", o.weights_channels);
  return true;
}

nlohmann::json Kind::to_hf(const void* options) const {
  const auto& o = *static_cast<const Options*>(options);
  nlohmann::json config{{"architecture", fmt::format("resnet{}", *o.depth)},
                        {"num_classes", o.classes},
                        {"num_features", (depth_of(*o.depth).bottleneck ? 32 : 8) * *o.width},
                        {"num_channels", o.channels}};
  if (*o.width != 64) config["width"] = *o.width;
  add_labels(config, o.classes, o.class_names);
  return config;
}

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<ResNet>(options); }

}  // namespace trireme::models::resnet
