#include "models/vit/kind.h"

#include <fmt/format.h>

#include "core/base/bounds.h"
#include "models/vit/timm.h"
#include "models/vit/vit.h"

namespace trireme::models::vit {
namespace {

/// One number for squares, else [height, width]. Unset: the file has no size.
std::optional<nn::ImageSize> image_size_of(const nlohmann::json& stored, const nn::HfConfig& config) {
  if (stored.is_null()) return std::nullopt;
  const auto is_side = [](const nlohmann::json& side) {
    return read_number<std::int64_t>(side, size_rules()).has_value();
  };
  if (is_side(stored)) return stored.get<std::int64_t>();
  if (!stored.is_array() || stored.size() != 2 || !is_side(stored[0]) || !is_side(stored[1]))
    config.refuse(fmt::format("has image_size = {}; it must be {}, or [height, width]", stored.dump(),
                              number_text<std::int64_t>(size_rules())));
  return nn::ImageSize(stored.get<nn::ImageSize::List>());
}

}  // namespace

const nn::HfKeys& Kind::hf_keys() const {
  static const nn::HfKeys keys{.used = {{"image_size", 224}, {"num_channels", 3}},
                               // Of the model without a head, and of the one that reconstructs pixels.
                               .no_effect = {"encoder_stride", "pooler_act", "pooler_output_size"},
                               .written = {{"architectures", {"ViTForImageClassification"}}}};
  return keys;
}

nlohmann::json Kind::recognized(const nlohmann::json& config, const std::string& file) const {
  const auto timm = hf_config_of_timm(config, file);
  return timm.is_null() ? ModelKind::recognized(config, file) : timm;
}

void Kind::read_from(Options& o, const nn::HfConfig& config) const {
  if (*o.hidden_size % *o.num_heads != 0)
    config.refuse(
        fmt::format("has hidden_size = {} and num_attention_heads = {}; the first must be a multiple of the "
                    "second",
                    *o.hidden_size, *o.num_heads));
  o.weights_channels = config.read<std::int64_t>("num_channels", size_rules());
  o.weights_image_size = image_size_of(config.value("image_size"), config);
}

void Kind::write_to(const Options& o, nlohmann::json& config) const {
  const auto& [height, width] = o.image_size;
  config["image_size"] = height == width ? nlohmann::json(height) : nlohmann::json{height, width};
  config["num_channels"] = o.channels;
  nn::add_labels(config, o.classes, o.class_names);
}

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<Vit>(options); }

}  // namespace trireme::models::vit
