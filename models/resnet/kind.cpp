#include "models/resnet/kind.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/bounds.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "models/parts.h"
#include "models/timm_config.h"

namespace trireme::models::resnet {

const Depth& depth_of(std::int64_t layers) {
  static const std::vector<Depth> known{{18, {2, 2, 2, 2}, false},
                                        {34, {3, 4, 6, 3}, false},
                                        {50, {3, 4, 6, 3}, true},
                                        {101, {3, 4, 23, 3}, true},
                                        {152, {3, 8, 36, 3}, true}};
  const auto found = std::find_if(known.begin(), known.end(), [&](const Depth& d) { return d.layers == layers; });
  if (found == known.end())
    throw ConfigError(fmt::format("model.depth: no ResNet has {} layers; choose 18, 34, 50, 101 or 152", layers));
  return *found;
}

const Fields<Options>& fields() {
  static const auto table =
      Fields<Options>("model", "A residual network for image classification.")
          .with("name", "resnet")
          .add("depth", &Options::depth,
               "Number of layers with weights: 18, 34, 50, 101 or 152. Unset: that of the loaded weights, else 50.",
               {.min = 1, .max = 65536, .stored = "", .implied = 50})
          .add("width", &Options::width,
               "Channels of the first convolution and of the first stage; the other stages have 2, 4 and 8 times as "
               "many. With 50 layers or more, a block's output has 4 times the channels of its stage. Unset: that of "
               "the "
               "loaded weights, else 64.",
               {.min = 1, .max = 65536, .implied = 64})
          .add("zero_init_residual", &Options::zero_init_residual,
               "Whether the last norm of each block starts at zero, so that a new block passes its input on.",
               {.stored = ""})
          .add("sync_batch_norm", &Options::sync_batch_norm,
               "Whether mean and variance are those of the microbatches of all data-parallel ranks together: with one "
               "microbatch a step, the result is then the same on any number of ranks. false: each rank has those of "
               "its own microbatch.",
               {.stored = ""})
          .add("channels_last", &Options::channels_last,
               "Whether activations are [height, width, channels] in memory: faster on a CPU and on tensor cores.",
               {.stored = ""});
  return table;
}

void Kind::resolve_for(Options& options, const nn::DataSpec& data) const {
  nn::fill_unset(fields(), &options);
  depth_of(*options.depth);
  const auto& pixels = pixels_of(data, "resnet");
  check_one_output(data, "resnet");
  options.channels = pixels.shape[0];
  options.classes = data.classes;
  options.class_names = data.class_names;
  if (options.weights_channels && *options.weights_channels != options.channels)
    throw ConfigError(fmt::format("model.weights: these weights are for images of {}, but the data have {}",
                                  text::quantity(*options.weights_channels, "channel"), options.channels));
}

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
  add_timm_classes(config, o.class_names, "conv1", "fc");
}

void Kind::add_preparation(nlohmann::json& config, const nlohmann::json& preprocessor) const {
  add_timm_preparation(config, preprocessor);
}

std::vector<nn::OtherFormat> Kind::other_formats() const {
  return {
      {.naming = {.library = "timm", .names = {}}, .config = [](const auto& config, const auto&) { return config; }}};
}

}  // namespace trireme::models::resnet
