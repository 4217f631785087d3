#include "models/vit/kind.h"

#include <fmt/format.h>

#include "core/base/bounds.h"
#include "core/base/error.h"
#include "models/parts.h"
#include "models/vit/timm.h"

namespace trireme::models::vit {
namespace {

/// Checks a % b == 0. `a_name`: how the message begins, before the value.
/// @throws ConfigError that gives the nearest valid values
void must_divide(const char* a_name, std::int64_t a, const char* b_name, std::int64_t b) {
  if (a % b == 0) return;
  if (a < b)
    throw ConfigError(
        fmt::format("{} {} is not a multiple of {} = {}; the smallest that fits is {}", a_name, a, b_name, b, b));
  throw ConfigError(fmt::format("{} {} is not a multiple of {} = {}; the nearest that fit are {} and {}", a_name, a,
                                b_name, b, a / b * b, (a / b + 1) * b));
}

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

const Fields<Options>& fields() {
  static const auto table =
      Fields<Options>("model", "A Vision Transformer with a classifier on the class token.")
          .with("name", "vit")
          .add_presets(&Options::size, "",
                       {.key = "size",
                        .keys = {"hidden_size", "num_layers", "num_heads", "intermediate_size"},
                        .names = {{"tiny", {192, 12, 3, 768}},
                                  {"small", {384, 12, 6, 1536}},
                                  {"base", {768, 12, 12, 3072}},
                                  {"large", {1024, 24, 16, 4096}}},
                        .fallback = "tiny"})
          .add("hidden_size", &Options::hidden_size, "Size of a token's hidden vector.",
               {.min = 1, .max = 1048576, .implied = 768})
          .add("num_layers", &Options::num_layers, "Number of encoder layers.",
               {.min = 1, .max = 10000, .stored = "num_hidden_layers", .implied = 12})
          .add("num_heads", &Options::num_heads, "Number of attention heads; must divide hidden_size.",
               {.min = 1, .max = 1048576, .stored = "num_attention_heads", .implied = 12})
          .add("intermediate_size", &Options::intermediate_size, "Hidden size of the MLP.",
               {.min = 1, .max = 1e13, .implied = 3072})
          .add("patch_size", &Options::patch_size,
               "Side of a patch in pixels; must divide the height and the width of the images. Unset: that of the "
               "loaded weights, else 16.",
               {.min = 1, .max = 65536, .implied = 16})
          .add("dropout", &Options::dropout,
               "Dropout probability of hidden values. Unset: that of the loaded weights, else 0.",
               {.min = 0, .below = 1, .stored = "hidden_dropout_prob", .implied = 0.0, .overrides = true})
          .add("attention_dropout", &Options::attention_dropout, attention_dropout_text("0"),
               {.min = 0, .below = 1, .stored = "attention_probs_dropout_prob", .implied = 0.0, .overrides = true})
          .add("drop_path", &Options::drop_path,
               "Probability with which the residual branches of the last layer are left out for a sample in training "
               "(stochastic depth); it grows linearly from 0 in the first layer. Unset: 0.",
               {.min = 0, .below = 1, .stored = "", .implied = 0.0})
          .add("hidden_act", &Options::hidden_act,
               "Activation of the MLP. Unset: that of the loaded weights, else gelu.",
               {.choices = hidden_acts(), .implied = "gelu"})
          .add("layer_norm_eps", &Options::layer_norm_eps,
               "Added to the variance in each layer norm. Unset: that of the loaded weights, else 1e-12.",
               {.above = 0, .implied = 1e-12, .overrides = true})
          .add("initializer_range", &Options::initializer_range,
               "Standard deviation of newly initialized weights, class token and position embeddings. Unset: that of "
               "the loaded weights, else 0.02.",
               {.min = 0, .implied = 0.02, .overrides = true})
          .add("qkv_bias", &Options::qkv_bias,
               "Whether the query, key and value projections have biases. Unset: as in the loaded weights, else true.",
               {.implied = true});
  return table;
}

void Kind::resolve_for(Options& options, const nn::DataSpec& data) const {
  nn::fill_unset(fields(), &options);
  const auto& pixels = pixels_of(data, "vit");
  check_one_output(data, "vit");
  options.channels = pixels.shape[0];
  options.image_size = {pixels.shape[1], pixels.shape[2]};
  options.classes = data.classes;
  options.class_names = data.class_names;

  if (*options.drop_path > 0 && *options.num_layers == 1)
    throw ConfigError("model.drop_path: has no effect with one layer, because it grows from 0 in the first; remove it");
  must_divide("model.hidden_size:", *options.hidden_size, "model.num_heads", *options.num_heads);
  const auto& [height, width] = options.image_size;
  const bool square = options.image_size.is_square();
  must_divide(square ? "data.image_size:" : "data.image_size: the height", height, "model.patch_size",
              *options.patch_size);
  must_divide("data.image_size: the width", width, "model.patch_size", *options.patch_size);
  if (options.weights_channels && *options.weights_channels != options.channels)
    throw ConfigError(fmt::format("model.weights: these weights have num_channels = {}, but the data has {} channels",
                                  *options.weights_channels, options.channels));
}

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

std::vector<nn::OtherFormat> Kind::other_formats() const { return {{timm_naming(), timm_config}}; }

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

}  // namespace trireme::models::vit
