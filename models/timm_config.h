// What timm's config.json says of an exported model beside its sizes: pretrained_cfg, from which
// timm.create_model("local-dir:...") takes the classes, and timm.data the preparation of images.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace trireme::models {

/// Adds pretrained_cfg to a config.json with num_classes. `names`: of the classes, or none. The layers are those whose
/// shapes depend on the images' channels and on the classes, by their names in timm.
void add_timm_classes(nlohmann::json& config, const std::vector<std::string>& names, const char* first_layer,
                      const char* last_layer);

/// Adds to its pretrained_cfg how images are prepared. `config`: with num_channels. `preprocessor`: the content of
/// preprocessor_config.json.
void add_timm_preparation(nlohmann::json& config, const nlohmann::json& preprocessor);

}  // namespace trireme::models
