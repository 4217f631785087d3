#include "models/qwen3/kind.h"

#include <fmt/format.h>

namespace trireme::models::qwen3 {

static const Fields<llama::Options>& qwen3_fields() {
  static const auto table = [] {
    auto out = llama::fields_of(
        {.name = "qwen3",
         .text = "Qwen3: a decoder of text as Llama is, with norms of queries and keys.",
         .size_text = " tiny has 32000 token ids, 2048 positions and the rotary base 10000; the others have 151936, "
                      "40960 and 1000000. The head is tied up to 4b.",
         .presets = {.keys = {"hidden_size", "num_layers", "num_heads", "num_key_value_heads", "head_size",
                              "intermediate_size"},
                     .further = {"vocab_size", "max_positions", "rope_theta", "tied"},
                     .names = {{"tiny", {256, 4, 4, 2, 64, 768, 32000, 2048, 1e4, true}},
                               {"0.6b", {1024, 28, 16, 8, 128, 3072, 151936, 40960, 1e6, true}},
                               {"1.7b", {2048, 28, 16, 8, 128, 6144, 151936, 40960, 1e6, true}},
                               {"4b", {2560, 36, 32, 8, 128, 9728, 151936, 40960, 1e6, true}},
                               {"8b", {4096, 36, 32, 8, 128, 12288, 151936, 40960, 1e6, false}},
                               {"14b", {5120, 40, 40, 8, 128, 17408, 151936, 40960, 1e6, false}},
                               {"32b", {5120, 64, 64, 8, 128, 25600, 151936, 40960, 1e6, false}}},
                     .fallback = "tiny"},
         .implied = {{"hidden_size", 4096},
                     {"num_layers", 32},
                     {"num_heads", 32},
                     {"num_key_value_heads", 32},
                     {"head_size", 128},
                     {"intermediate_size", 22016},
                     {"vocab_size", 151936},
                     {"max_positions", 32768}}});
    std::erase_if(out.fields, [](const Field& field) { return field.key == "mlp_bias"; });
    return out;
  }();
  return table;
}

Kind::Kind() : llama::Kind(qwen3_fields()) {}

const nn::HfKeys& Kind::hf_keys() const {
  static const auto keys = [](nn::HfKeys out) {
    out.used["layer_types"] = nullptr;
    out.fixed["use_sliding_window"] = false;
    out.no_effect = {"max_window_layers", "sliding_window"};
    out.written = {{"architectures", {"Qwen3ForCausalLM"}}};
    return out;
  }(llama::Kind::hf_keys());
  return keys;
}

nlohmann::json Kind::recognized(const nlohmann::json& config, const std::string& file) const {
  auto values = llama::Kind::recognized(config, file);
  const auto heads = values.find("num_key_value_heads");
  if (heads != values.end() && heads->is_null()) *heads = values.value("num_attention_heads", nlohmann::json(32));
  return values;
}

void Kind::read_from(llama::Options& options, const nn::HfConfig& config) const {
  llama::Kind::read_from(options, config);
  for (const auto& type : config.value("layer_types"))
    if (type != "full_attention")
      config.refuse(fmt::format("has layer_types with {}; only \"full_attention\" is supported", type.dump()));
}

void Kind::resolve_for(llama::Options& options, const nn::DataSpec& data) const {
  options.query_key_norm = true;
  llama::Kind::resolve_for(options, data);
}

}  // namespace trireme::models::qwen3
