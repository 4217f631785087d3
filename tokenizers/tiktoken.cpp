#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "core/base/error.h"
#include "core/base/text.h"
#include "tokenizers/base64.h"
#include "tokenizers/bpe.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/tokenizer_config.h"
#include "tokenizers/tokenizer_files.h"

namespace trireme::tokenizers {
namespace {

/// English contractions, words with what is before them, numbers of up to three digits, other characters, line breaks.
constexpr const char* kWords =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Ranked {
  std::string bytes;
  std::int32_t rank;
};

/// A line, "BASE64 RANK"; nullopt when it is none.
std::optional<Ranked> ranked(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const auto space = line.find(' ');
  if (space == line.npos || space == 0) return std::nullopt;
  auto bytes = from_base64(line.substr(0, space));
  const auto rank = text::integer(line.substr(space + 1));
  if (!bytes || bytes->empty() || !rank || *rank < 0 || *rank >= kMostTokens || bytes->size() > kLongestPiece)
    return std::nullopt;
  return Ranked{*std::move(bytes), static_cast<std::int32_t>(*rank)};
}

std::vector<Ranked> read_ranks(const TokenizerFile& file) {
  std::vector<Ranked> out;
  std::size_t number = 0;
  const std::string_view content = file.content;
  for (std::size_t begin = 0; begin < content.size();) {
    const auto end = std::min(content.find('\n', begin), content.size());
    const auto line = content.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.empty()) continue;
    auto found = ranked(line);
    if (!found)
      throw DataError(fmt::format("{}:{}: a token in base64, a space and its rank are expected", file.path, number));
    out.push_back(*std::move(found));
  }
  return out;
}

/// A merge for each way to put a token together from two; those of the lowest rank come first.
MergeTable merges_of_ranks(const std::vector<Ranked>& tokens) {
  std::map<std::string_view, std::int32_t> ranks;
  for (const auto& token : tokens) ranks[token.bytes] = token.rank;
  std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>> pairs;  // merged, left, right
  for (const auto& token : tokens)
    for (std::size_t at = 1; at < token.bytes.size(); ++at) {
      const auto left = ranks.find(std::string_view(token.bytes).substr(0, at));
      if (left == ranks.end()) continue;
      const auto right = ranks.find(std::string_view(token.bytes).substr(at));
      if (right != ranks.end()) pairs.emplace_back(token.rank, left->second, right->second);
    }
  std::sort(pairs.begin(), pairs.end());
  MergeTable out;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto [merged, left, right] = pairs[i];
    out.set(left, right, {static_cast<std::int32_t>(i), merged});
  }
  return out;
}

}  // namespace

bool is_tiktoken(std::string_view content) { return ranked(content.substr(0, content.find('\n'))).has_value(); }

TokenizerParts read_tiktoken(const TokenizerFiles& files) {
  const auto& file = files.at(kPieceFile);
  const auto tokens = read_ranks(file);
  const TokenizerConfig config(files);
  Vocabulary vocabulary;
  for (const auto& token : tokens) {
    if (vocabulary.text(token.rank) != nullptr)
      throw DataError(fmt::format("{}: the rank {} is that of two tokens", file.path, token.rank));
    auto text = to_byte_level(AlignedText(token.bytes)).text();
    if (vocabulary.id(text))
      throw DataError(fmt::format("{}: the token of rank {} is there twice", file.path, token.rank));
    vocabulary.set(std::move(text), token.rank);
  }
  TokenizerParts out;
  out.normalizer = normalizer_sequence({});
  out.pre_tokenizer =
      pre_tokenizer_sequence({split_pre_tokenizer(Pattern::of_expression(kWords), SplitBehavior::isolated, false),
                              byte_level_pre_tokenizer(/*add_prefix_space=*/false, /*use_regex=*/false)});
  out.model = bpe(std::move(vocabulary), merges_of_ranks(tokens), {.ignore_merges = true, .byte_level = true});
  out.decoder = byte_level_decoder();
  out.added = read_added_tokens(files, config, {}, out, file.path);
  config.check_for_piece_file(out, /*may_be_llama=*/false);
  config.set_special(out);
  config.set_begin_and_end(out);
  return out;
}

}  // namespace trireme::tokenizers
