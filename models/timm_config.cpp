#include "models/timm_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

namespace trireme::models {

void add_timm_classes(nlohmann::json& config, const std::vector<std::string>& names, const char* first_layer,
                      const char* last_layer) {
  auto& timm = config["pretrained_cfg"];
  timm = {{"num_classes", config.at("num_classes")}, {"first_conv", first_layer}, {"classifier", last_layer}};
  if (!names.empty()) timm["label_names"] = names;
}

void add_timm_preparation(nlohmann::json& config, const nlohmann::json& preprocessor) {
  const bool crops = preprocessor.contains("crop_size");
  const auto& size = preprocessor.at(crops ? "crop_size" : "size");
  const auto height = size.at("height").get<std::int64_t>(), width = size.at("width").get<std::int64_t>();
  auto& timm = config["pretrained_cfg"];
  timm.update({{"input_size", {config.at("num_channels"), height, width}},
               {"mean", preprocessor.at("image_mean")},
               {"std", preprocessor.at("image_std")},
               {"interpolation", "bilinear"},
               {"crop_pct", 1.0},
               {"crop_mode", crops ? "center" : "squash"}});
  if (!crops) return;
  const auto side = static_cast<double>(std::min(height, width));
  const auto shorter = preprocessor.at("size").at("shortest_edge").get<double>();
  const auto part = side / shorter;  // by which timm divides, and rounds down
  timm["crop_pct"] = std::floor(side / part) < shorter ? std::nextafter(part, 0.0) : part;
}

}  // namespace trireme::models
