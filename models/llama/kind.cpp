#include "models/llama/kind.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "models/llama/llama.h"
#include "models/rope.h"

namespace trireme::models::llama {

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

nn::Policy Kind::policy(const void* options) const {
  return llama::policy(*static_cast<const Options*>(options)->tied);
}

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<Llama>(options); }

}  // namespace trireme::models::llama
