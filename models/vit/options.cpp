#include "models/vit/options.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "models/parts.h"

namespace trireme::models::vit {
namespace {

struct Size {
  const char* name;
  std::int64_t hidden_size, num_layers, num_heads, intermediate_size;
};
constexpr Size kSizes[] = {
    {"tiny", 192, 12, 3, 768}, {"small", 384, 12, 6, 1536}, {"base", 768, 12, 12, 3072}, {"large", 1024, 24, 16, 4096}};
constexpr const char* kDefaultSize = "tiny";

const Size& size_named(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& size : kSizes) {
    if (name == size.name) return size;
    known.emplace_back(size.name);
  }
  throw ConfigError(fmt::format("model.size: no such size \"{}\" (known: {}){}", name, text::join(known),
                                text::did_you_mean(name, known)));
}

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

}  // namespace

const Fields<Options>& fields() {
  static const auto table =
      Fields<Options>("model", "A Vision Transformer with a classifier on the class token.")
          .with("name", "vit")
          .add("size", &Options::size,
               "Preset of hidden_size/num_layers/num_heads/intermediate_size: tiny 192/12/3/768, small 384/12/6/1536, "
               "base 768/12/12/3072, large 1024/24/16/4096. Each can be set to override the preset. Unset: the sizes "
               "of the loaded weights, else tiny.",
               {.choices = {"tiny", "small", "base", "large"}})
          .add("hidden_size", &Options::hidden_size, "Size of a token's hidden vector.", {.min = 1, .max = 1048576})
          .add("num_layers", &Options::num_layers, "Number of encoder layers.", {.min = 1, .max = 10000})
          .add("num_heads", &Options::num_heads, "Number of attention heads; must divide hidden_size.",
               {.min = 1, .max = 1048576})
          .add("intermediate_size", &Options::intermediate_size, "Hidden size of the MLP.", {.min = 1, .max = 1e13})
          .add("patch_size", &Options::patch_size,
               "Side of a patch in pixels; must divide the height and the width of the images. Unset: that of the "
               "loaded weights, else 16.",
               {.min = 1, .max = 65536})
          .add("dropout", &Options::dropout,
               "Dropout probability of hidden values. Unset: that of the loaded weights, else 0.",
               {.min = 0, .below = 1})
          .add("attention_dropout", &Options::attention_dropout, attention_dropout_text("0"), {.min = 0, .below = 1})
          .add("drop_path", &Options::drop_path,
               "Probability with which the residual branches of the last layer are left out for a sample in training "
               "(stochastic depth); it grows linearly from 0 in the first layer. Unset: 0.",
               {.min = 0, .below = 1})
          .add("hidden_act", &Options::hidden_act,
               "Activation of the MLP. Unset: that of the loaded weights, else gelu.",
               {.choices = {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"}})
          .add("layer_norm_eps", &Options::layer_norm_eps,
               "Added to the variance in each layer norm. Unset: that of the loaded weights, else 1e-12.", {.above = 0})
          .add("initializer_range", &Options::initializer_range,
               "Standard deviation of newly initialized weights, class token and position embeddings. Unset: that of "
               "the loaded weights, else 0.02.",
               {.min = 0})
          .add("qkv_bias", &Options::qkv_bias,
               "Whether the query, key and value projections have biases. Unset: as in the loaded weights, else true.");
  return table;
}

void apply_size(Options& options) {
  if (!options.size) return;
  const Size& size = size_named(*options.size);
  bool used = false;
  const auto apply = [&used](std::optional<std::int64_t>& option, std::int64_t value) {
    used = used || option.value_or(value) == value;
    if (!option) option = value;
  };
  apply(options.hidden_size, size.hidden_size);
  apply(options.num_layers, size.num_layers);
  apply(options.num_heads, size.num_heads);
  apply(options.intermediate_size, size.intermediate_size);
  if (!used)
    throw ConfigError(
        fmt::format("model.size: \"{}\" has no effect, because hidden_size, num_layers, num_heads and "
                    "intermediate_size are set too; remove it, or them",
                    *options.size));
  options.size.reset();
}

void resolve(Options& options, const nn::DataSpec& data) {
  const bool sized = options.hidden_size && options.num_layers && options.num_heads && options.intermediate_size;
  if (!options.size && !sized) options.size = kDefaultSize;
  apply_size(options);
  fill<std::int64_t>(options.patch_size, 16);
  fill(options.dropout, 0.0);
  fill(options.attention_dropout, 0.0);
  fill(options.drop_path, 0.0);
  fill<std::string>(options.hidden_act, "gelu");
  fill(options.layer_norm_eps, 1e-12);
  fill(options.initializer_range, 0.02);
  fill(options.qkv_bias, true);
  const auto& pixels = data.required_input(kPixels, "model \"vit\"");
  if (pixels.shape.size() != 3 || pixels.varies())
    throw ConfigError(
        fmt::format("model \"vit\" reads {} [channels, height, width], but the data have {}", kPixels, pixels.text()));
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

}  // namespace trireme::models::vit
