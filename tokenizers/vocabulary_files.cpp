#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "core/base/error.h"
#include "core/base/text.h"
#include "tokenizers/added_tokens.h"
#include "tokenizers/bpe.h"
#include "tokenizers/json_parts.h"
#include "tokenizers/tokenizer_config.h"
#include "tokenizers/tokenizer_files.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

[[noreturn]] void refuse_line(const TokenizerFile& file, std::size_t line, const std::string& what) {
  throw DataError(fmt::format("{}:{}: {}", file.path, line, what));
}

/// The lines without their ends. @throws DataError where one is not UTF-8
std::vector<std::string_view> lines_of(const TokenizerFile& file) {
  std::vector<std::string_view> out;
  const std::string_view content = file.content;
  for (std::size_t begin = 0; begin < content.size();) {
    const auto end = std::min(content.find('\n', begin), content.size());
    auto line = content.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    out.push_back(line);
    if (const auto at = invalid_byte(line))
      refuse_line(file, out.size(), fmt::format("byte {} of the line is not valid UTF-8", *at));
    begin = end + 1;
  }
  if (out.empty()) throw DataError(fmt::format("{}: the file is empty", file.path));
  return out;
}

/// Without the white space at its end.
std::string_view trimmed(std::string_view line) {
  std::size_t kept = 0;
  for (std::size_t at = 0; at < line.size();)
    if (!is_white_space(next_char(line, at))) kept = at;
  return line.substr(0, kept);
}

Vocabulary read_lines(const TokenizerFile& file) {
  const auto lines = lines_of(file);
  if (static_cast<std::int64_t>(lines.size()) > kMostTokens)
    throw DataError(fmt::format("{}: {} tokens are more than {}", file.path, lines.size(), kMostTokens));
  Vocabulary out;
  for (std::size_t i = 0; i < lines.size(); ++i) out.set(std::string(trimmed(lines[i])), static_cast<std::int32_t>(i));
  return out;
}

void read_merge_lines(const TokenizerFile& file, const Vocabulary& vocabulary, MergeTable& merges) {
  const auto lines = lines_of(file);
  std::size_t rank = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto line = lines[i];
    if (line.starts_with("#version")) continue;
    const auto space = line.find(' ');
    if (space == line.npos || line.find(' ', space + 1) != line.npos)
      refuse_line(file, i + 1, "two tokens with one space between them are expected");
    try {
      add_merge(vocabulary, std::string(line.substr(0, space)), std::string(line.substr(space + 1)), rank++, merges);
    } catch (const PartError& error) {
      refuse_line(file, i + 1, error.what());
    }
  }
}

}  // namespace

AddedTokens read_added_tokens(const TokenizerFiles& files, const TokenizerConfig& config,
                              std::vector<std::string> special, const TokenizerParts& parts, const std::string& path,
                              bool as_written) {
  AddedTokensReader out(parts.model->vocabulary(), as_written);
  const auto stored = config.json().find("added_tokens_decoder");
  if (stored.is_null() && files.contains("added_tokens.json"))
    throw DataError(
        fmt::format("{}: tokens in a file of their own are not supported; save tokenizer.json with "
                    "transformers' save_pretrained",
                    files.at("added_tokens.json").path));
  std::map<std::int64_t, JsonView> by_id;
  if (!stored.is_null())
    for (const auto& member : stored.object().items()) {
      const auto& key = member.key();
      const auto id = text::integer(key);
      if (!id) stored.refuse(fmt::format("\"{}\" is no id", key));
      by_id.emplace(*id, stored.find(key));
    }
  for (const auto& [id, token] : by_id) out.add(token, id);
  for (const auto& name : config.named_tokens()) special.push_back(name);
  out.add_special(special);
  return out.finish(parts.normalizer, path);
}

TokenizerParts read_vocab_txt(const TokenizerFiles& files) {
  const auto& file = files.at("vocab.txt");
  const TokenizerConfig config(files);
  auto vocabulary = read_lines(file);
  const auto id = [&](const std::string& key, const std::string& usual) {
    const auto name =
        config.token(key, {usual}, [&](const std::string& text) { return vocabulary.id(text).has_value(); });
    if (!name)
      throw DataError(fmt::format("{}: there is no {} ({}); BERT's tokenizer needs it", file.path, usual, key));
    return *vocabulary.id(*name);
  };
  const auto unknown = id("unk_token", "[UNK]"), cls = id("cls_token", "[CLS]"), sep = id("sep_token", "[SEP]");
  TokenizerParts out;
  BertNormalizerOptions options;
  options.lowercase = config.json().find("do_lower_case").flag_or(true);
  options.strip_accents = config.json().find("strip_accents").flag_or(options.lowercase);
  options.handle_chinese_chars = config.json().find("tokenize_chinese_chars").flag_or(true);
  out.normalizer = bert_normalizer(options);
  out.pre_tokenizer = bert_pre_tokenizer();
  out.model = word_piece(std::move(vocabulary), WordPieceOptions{.unknown = unknown});
  out.post_processor = {{{{}, {cls}, 0}, {0, {}, 0}, {{}, {sep}, 0}},
                        {{{}, {cls}, 0}, {0, {}, 0}, {{}, {sep}, 0}, {1, {}, 1}, {{}, {sep}, 1}}};
  out.decoder = word_piece_decoder("##", true);
  out.special.unknown = unknown;
  out.added = read_added_tokens(files, config, {"[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"}, out, file.path);
  config.set_special(out);
  return out;
}

TokenizerParts read_vocab_and_merges(const TokenizerFiles& files) {
  const auto& file = files.at("vocab.json");
  const auto content = read_json(file.content, file.path);
  auto vocabulary = read_vocabulary(JsonView(content, file.path));
  const TokenizerConfig config(files);
  // RoBERTa's and BART's tokenizers have the same files, and put other tokens around a text.
  const auto kind = config.json().find("tokenizer_class").text_or("GPT2Tokenizer");
  if ((kind != "GPT2Tokenizer" && kind != "GPT2TokenizerFast") || (vocabulary.id("<s>") && vocabulary.id("</s>")))
    throw DataError(
        fmt::format("{}: without tokenizer.json, vocab.json with merges.txt is read as GPT-2's tokenizer, "
                    "which this is not; save tokenizer.json with transformers' save_pretrained",
                    file.path));
  MergeTable merges;
  read_merge_lines(files.at("merges.txt"), vocabulary, merges);
  TokenizerParts out;
  out.normalizer = normalizer_sequence({});
  out.pre_tokenizer = byte_level_pre_tokenizer(config.json().find("add_prefix_space").flag_or(false), true);
  out.model = bpe(std::move(vocabulary), std::move(merges), BpeOptions{.byte_level = true});
  out.decoder = byte_level_decoder();
  out.special.unknown = out.id("<|endoftext|>");
  out.added = read_added_tokens(files, config, {"<|endoftext|>"}, out, file.path);
  config.set_special(out);
  config.set_begin_and_end(out);
  return out;
}

}  // namespace trireme::tokenizers
