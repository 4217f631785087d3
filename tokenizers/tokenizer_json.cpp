#include <fmt/format.h>

#include "tokenizers/added_tokens_reader.h"
#include "tokenizers/json_parts.h"
#include "tokenizers/tokenizer_config.h"
#include "tokenizers/tokenizer_files.h"

namespace trireme::tokenizers {
namespace {

/// Whether a pre-tokenizer makes characters of bytes.
bool is_byte_level(const JsonView& pre_tokenizer) {
  if (pre_tokenizer.is_null()) return false;
  if (pre_tokenizer.at("type").text() != "Sequence") return pre_tokenizer.at("type").text() == "ByteLevel";
  for (const auto& part : pre_tokenizer.at("pretokenizers").elements())
    if (is_byte_level(part)) return true;
  return false;
}

}  // namespace

TokenizerParts read_tokenizer_json(const TokenizerFiles& files) {
  const auto& file = files.at("tokenizer.json");
  const auto content = read_json(file.content, file.path);
  const JsonView json(content, file.path);
  // What a text is cut or padded to is the run's choice, not the file's.
  json.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
  if (const auto version = json.find("version"); version.text_or("1.0") != "1.0")
    version.refuse(fmt::format("the version \"{}\" is not supported (known: 1.0)", version.text()));
  TokenizerParts out;
  out.normalizer = read_normalizer(json.find("normalizer"));
  const auto pre_tokenizer = json.find("pre_tokenizer");
  out.pre_tokenizer = read_pre_tokenizer(pre_tokenizer);
  read_model(json.at("model"), is_byte_level(pre_tokenizer), out);
  AddedTokensReader added(out.model->vocabulary());
  if (const auto tokens = json.find("added_tokens"); !tokens.is_null())
    for (const auto& token : tokens.elements()) added.add(token, token.at("id").number(kMostTokens - 1));
  out.added = added.finish(out.normalizer, file.path);
  out.post_processor = read_post_processor(json.find("post_processor"), out);
  out.decoder = read_decoder(json.find("decoder"));
  const TokenizerConfig config(files);
  config.set_special(out);
  if (out.model->kind() != "WordPiece") config.set_begin_and_end(out);
  return out;
}

}  // namespace trireme::tokenizers
