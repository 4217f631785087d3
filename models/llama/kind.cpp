#include "models/llama/kind.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "models/decoder.h"
#include "models/parts.h"

namespace trireme::models::llama {
namespace {

// Rotary positions in config.json: rope_parameters, or in files of older versions rope_theta and rope_scaling.

using nn::HfConfig;
using nn::RotaryScaling;

const Fields<RotaryScaling>& rope_fields() {
  using S = RotaryScaling;
  const OnlyWith scaled{"rope_type", {"linear", "dynamic", "llama3", "yarn"}};
  const OnlyWith long_trained{"rope_type", {"llama3", "yarn"}}, llama3{"rope_type", {"llama3"}};
  const OnlyWith yarn{"rope_type", {"yarn"}};
  static const auto table =
      Fields<S>("rope_parameters", "")
          .add("rope_type", &S::type, "", {.choices = {"default", "linear", "dynamic", "llama3", "yarn"}})
          .add("factor", &S::factor, "", {.min = 1, .only = scaled})
          .add("original_max_position_embeddings", &S::original_positions, "", {.min = 1, .only = long_trained})
          .add("low_freq_factor", &S::low_freq_factor, "", {.above = 0, .only = llama3})
          .add("high_freq_factor", &S::high_freq_factor, "", {.above = 0, .only = llama3})
          .add("attention_factor", &S::attention_factor, "", {.above = 0, .only = yarn})
          .add("beta_fast", &S::beta_fast, "", {.above = 0, .only = yarn})
          .add("beta_slow", &S::beta_slow, "", {.above = 0, .only = yarn})
          .add("mscale", &S::mscale, "", {.min = 0, .only = yarn})
          .add("mscale_all_dim", &S::mscale_all_dim, "", {.min = 0, .only = yarn})
          .add("truncate", &S::truncate, "", {.only = yarn});
  return table;
}

constexpr const char *kRope = "rope_parameters", *kType = "rope_type", *kOriginal = "original_max_position_embeddings";

/// The file with one object rope_parameters, if it has any, and with rope_theta and partial_rotary_factor beside it.
/// @throws ConfigError where it has an object for each kind of attention
nlohmann::json with_rope_parameters(nlohmann::json values, const std::string& file) {
  if (!values.is_object()) return values;
  auto all = nlohmann::json::object();
  for (const auto* key : {kRope, "rope_scaling"}) {
    const auto found = values.find(key);
    if (found == values.end() || found->is_null()) continue;
    // Files of other models have an object for each kind of attention.
    const auto is_nested = [](const nlohmann::json& inner) { return inner.is_object(); };
    if (!found->is_object() || std::any_of(found->begin(), found->end(), is_nested))
      throw ConfigError(
          fmt::format("model.weights: {} has {} = {}; it must be one object for all layers", file, key, found->dump()));
    all.update(*found);
  }
  if (all.empty()) return values;
  for (const auto* inner : {"rope_theta", "partial_rotary_factor"})
    if (all.contains(inner)) values[inner] = all[inner];
  if (values.contains(kOriginal)) all[kOriginal] = values[kOriginal];
  all.emplace(kType, all.value("type", nlohmann::json("default")));
  values[kRope] = all;
  return values;
}

/// Reads what with_rope_parameters() made; `max_positions` is the file's. @throws ConfigError for a type or a parameter
/// that transformers does not have, and for one that is missing
RotaryScaling read_rope(const HfConfig& config, std::int64_t max_positions) {
  RotaryScaling out;
  const auto values = config.value(kRope);
  if (values.is_null() || values.empty()) return out;
  const auto& types = rope_fields().find(kType)->rules.choices;
  if (std::find(types.begin(), types.end(), values.at(kType)) == types.end())
    config.refuse(fmt::format("has rotary positions of the type {}; only {} are supported", values.at(kType).dump(),
                              fmt::join(types, ", ")));
  HfConfig(rope_fields(), {}, values, config.file()).take_all(&out);
  if (out.type == "default") return out;
  if (!out.original_positions) out.original_positions = max_positions;
  if (!out.factor && out.type == "yarn")
    out.factor = static_cast<double>(max_positions) / static_cast<double>(*out.original_positions);
  if (!out.factor || (out.type == "llama3" && !(out.low_freq_factor && out.high_freq_factor)))
    config.refuse(fmt::format("has rotary positions of the type \"{}\" without {}, which they need", out.type,
                              out.factor ? "low_freq_factor and high_freq_factor" : "factor"));
  return out;
}

/// Moves rope_theta of a config.json into its rope_parameters, with the scaling.
void write_rope(nlohmann::json& config, const RotaryScaling& scaling) {
  auto rope = nn::stored_values(rope_fields(), &scaling);
  for (auto item = rope.begin(); item != rope.end();) item = item->is_null() ? rope.erase(item) : std::next(item);
  rope["rope_theta"] = config.at("rope_theta");
  config.erase("rope_theta");
  config[kRope] = std::move(rope);
}

}  // namespace

Fields<Options> fields_of(Variant variant) {
  using O = Options;
  variant.presets.key = "size";
  auto table =
      Fields<O>("model", variant.text)
          .with("name", variant.name)
          .add_presets(&O::size, variant.size_text, std::move(variant.presets))
          .add("hidden_size", &O::hidden_size, "Size of a token's hidden vector.", {.min = 1, .max = 1048576})
          .add("num_layers", &O::num_layers, "Number of decoder layers.",
               {.min = 1, .max = 10000, .stored = "num_hidden_layers"})
          .add("num_heads", &O::num_heads, "Number of attention heads.",
               {.min = 1, .max = 1048576, .stored = "num_attention_heads"})
          .add("num_key_value_heads", &O::num_key_value_heads,
               "Number of heads of keys and values, which heads share; must divide num_heads. Unset: that of the "
               "loaded weights or of the size, else num_heads.",
               {.min = 1, .max = 1048576})
          .add("head_size", &O::head_size,
               "Size of a head; even. Unset: that of the loaded weights or of the size, else hidden_size / num_heads.",
               {.min = 2, .max = 1048576, .stored = "head_dim"})
          .add("intermediate_size", &O::intermediate_size, "Hidden size of the MLP.", {.min = 1, .max = 1e12})
          .add("vocab_size", &O::vocab_size,
               "Number of token ids. Unset: that of the loaded weights, else of the data's tokenizer, else of the "
               "size.",
               {.min = 1, .max = 1e9})
          .add("max_positions", &O::max_positions,
               "The longest sample, in tokens. Unset: that of the loaded weights, else of the size.",
               {.min = 1, .max = 1e9, .stored = "max_position_embeddings", .overrides = true})
          .add("hidden_act", &O::hidden_act,
               "Activation of the MLP's gate. Unset: that of the loaded weights, else silu.",
               {.choices = hidden_acts(), .implied = "silu"})
          .add("tied", &O::tied,
               "Whether the head's weights are the embedding's. Unset: as in the loaded weights' config.json, else of "
               "the size, else false.",
               {.stored = "tie_word_embeddings", .implied = false, .overrides = true})
          .add("attention_bias", &O::attention_bias,
               "Whether the attention's projections have biases. Unset: as in the loaded weights, else false.",
               {.implied = false})
          .add("mlp_bias", &O::mlp_bias,
               "Whether the MLP's layers have biases. Unset: as in the loaded weights, else false.", {.implied = false})
          .add("attention_dropout", &O::attention_dropout, attention_dropout_text("0"),
               {.min = 0, .below = 1, .implied = 0.0, .overrides = true})
          .add("rms_norm_eps", &O::rms_norm_eps,
               "Added to the mean square in each norm. Unset: that of the loaded weights, else 1e-6.",
               {.above = 0, .implied = 1e-6, .overrides = true})
          .add("rope_theta", &O::rope_theta,
               "Base of the rotary angles. Unset: that of the loaded weights, else of the size.",
               {.above = 0, .implied = 1e4})
          .add("initializer_range", &O::initializer_range,
               "Standard deviation of newly initialized weights. Unset: that of the loaded weights, else 0.02.",
               {.min = 0, .implied = 0.02, .overrides = true});
  for (auto& field : table.fields)
    for (const auto& [key, value] : variant.implied)
      if (field.key == key) field.rules.implied = value;
  return table;
}

const Fields<Options>& fields() {
  static const auto table = fields_of(
      {.name = "llama",
       .text = "Llama: a decoder of text with rotary positions, shared key-value heads and a gated MLP.",
       .size_text = " tiny has 32000 token ids, 2048 positions and the rotary base 10000; the others have 128256, 8192 "
                    "and 500000 as Llama 3. The head is tied in 1b and 3b.",
       .presets = {.keys = {"hidden_size", "num_layers", "num_heads", "num_key_value_heads", "head_size",
                            "intermediate_size"},
                   .further = {"vocab_size", "max_positions", "rope_theta", "tied"},
                   .names = {{"tiny", {288, 6, 6, 6, 48, 768, 32000, 2048, 1e4, false}},
                             {"1b", {2048, 16, 32, 8, 64, 8192, 128256, 8192, 5e5, true}},
                             {"3b", {3072, 28, 24, 8, 128, 8192, 128256, 8192, 5e5, true}},
                             {"8b", {4096, 32, 32, 8, 128, 14336, 128256, 8192, 5e5, false}}},
                   .fallback = "tiny"},
       .implied = {{"hidden_size", 4096},
                   {"num_layers", 32},
                   {"num_heads", 32},
                   {"intermediate_size", 11008},
                   {"vocab_size", 32000},
                   {"max_positions", 2048}}});
  return table;
}

void Kind::resolve_for(Options& o, const nn::DataSpec& data) const {
  // Heads and width that are given decide over the number of shared heads and their size in the preset.
  const bool own_heads = (o.num_heads || o.hidden_size) && !o.head_size;
  if (o.num_heads) fill(o.num_key_value_heads, *o.num_heads);
  fill_vocabulary(o.vocab_size, data);
  nn::fill_unset(fields(), &o);
  if (own_heads) {
    if (*o.hidden_size % *o.num_heads != 0)
      throw ConfigError(
          fmt::format("model.hidden_size: {} is not a multiple of model.num_heads = {}; change one, or "
                      "set model.head_size",
                      *o.hidden_size, *o.num_heads));
    o.head_size = *o.hidden_size / *o.num_heads;
  }
  if (*o.num_heads % *o.num_key_value_heads != 0)
    throw ConfigError(fmt::format("model.num_key_value_heads: {} does not divide model.num_heads = {}",
                                  *o.num_key_value_heads, *o.num_heads));
  o.longest = *o.max_positions;
  // The angles depend on the batch's longest sample or position: where these vary, so would the results with the way in
  // which samples are put together.
  if (const auto* ids = data.input("input_ids");
      o.rope.type == "dynamic" && ids != nullptr && !ids->varies() && data.input("position_ids") == nullptr)
    o.longest = static_cast<std::int64_t>(*o.rope.factor * static_cast<double>(*o.max_positions));
  check_running_text(data, fields().choice, o.longest);
}

const nn::HfKeys& Kind::hf_keys() const {
  static const nn::HfKeys keys{
      .used = {{"rope_parameters", nullptr}, {"rope_scaling", nullptr}, {"pad_token_id", nullptr}},
      .fixed = {{"partial_rotary_factor", 1.0}},
      // It only splits the matrix products of versions before transformers 5.
      .no_effect = {"pretraining_tp"},
      .written = {{"architectures", {"LlamaForCausalLM"}}}};
  return keys;
}

nlohmann::json Kind::recognized(const nlohmann::json& config, const std::string& file) const {
  return with_rope_parameters(ModelKind::recognized(config, file), file);
}

void Kind::read_from(Options& o, const nn::HfConfig& config) const {
  o.padding_id = nn::padding_id(config, *o.vocab_size);
  const auto positions = std::get<std::int64_t>(*config.read(*fields().find("max_positions")));
  o.rope = read_rope(config, positions);
  if (o.rope.type == "dynamic" && *o.max_positions != positions)
    throw ConfigError(
        fmt::format("model.max_positions: {}, but the rotary positions of {} are scaled beyond "
                    "max_position_embeddings = {}; leave max_positions out",
                    *o.max_positions, config.file(), positions));
}

void Kind::write_to(const Options& o, nlohmann::json& config) const {
  config["pad_token_id"] = nn::stored_id(o.padding_id);
  write_rope(config, o.rope);
}

}  // namespace trireme::models::llama
