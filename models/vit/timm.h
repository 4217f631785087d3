// Vision Transformers as timm stores them, and with the same names DeiT (Touvron et al., "Training data-efficient image
// transformers & distillation through attention", ICML 2021): tensors under other names, and its own config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/nn/naming.h"

namespace trireme::models::vit {

/// The names of a Vit's parameters in timm's files, where one tensor holds query, key and value.
nn::Naming timm_naming();

/// The keys of Hugging Face's config.json for timm's, which names an architecture such as "deit_tiny_patch16_224" and
/// may have other sizes in model_args; null when `values` is of another model. `file` names it in errors. @throws
/// ConfigError for a Vision Transformer that Vit cannot compute
nlohmann::json hf_config_of_timm(const nlohmann::json& values, const std::string& file);

/// The way back (nn::OtherFormat::config): one architecture of timm, with all sizes in model_args.
/// @throws ConfigError for another layer_norm_eps than timm's
nlohmann::json timm_config(const nlohmann::json& config, const nlohmann::json& preprocessor);

}  // namespace trireme::models::vit
