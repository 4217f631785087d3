// The data set "text": texts for language models, in blocks of one length.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <ranges>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/digest.h"
#include "core/base/text.h"
#include "datasets/datasets.h"
#include "datasets/index_cache.h"
#include "datasets/shard_pattern.h"
#include "datasets/split_files.h"
#include "datasets/text/documents.h"
#include "datasets/text/encode.h"
#include "datasets/text/token_blocks.h"
#include "datasets/text/token_cache.h"
#include "datasets/text/tokenizer_choice.h"

namespace trireme::datasets {
namespace {

constexpr double kValidationShare = 0.05;
constexpr std::size_t kBytesAtOnce = std::size_t{64} << 20;  // of text that is tokenised together
constexpr const char* kTextEndings[] = {".txt", ".jsonl"};

const Fields<TextOptions>& text_fields() {
  using O = TextOptions;
  static const auto table = [] {
    Fields<O> rows(
        "data",
        "Texts for language models, tokenised and cut into blocks: files .txt and .jsonl (an object a line), "
        "or tokens in the files .bin and .idx of Megatron-LM.");
    rows.with("name", "text");
    add_split_fields(rows,
                     "train.txt, .jsonl, .bin and .idx, or a folder train; the same with validation (or valid, val, "
                     "dev) and test; or any *.txt and *.jsonl",
                     "File, pattern (\"part-*.txt\"), folder, or the common name of a .bin and an .idx file");
    rows.add("validation_share", &O::validation_share,
             fmt::format("Without a validation split, this share of the training tokens, from their end, is one. "
                         "Unset: {}.",
                         kValidationShare),
             {.above = 0, .below = 1})
        .add("documents", &O::documents,
             "Documents of a .txt file: the file, its lines, or what is between blank lines. An end token follows each "
             "document, if the tokenizer has one; else a line break is between them.",
             {.choices = {"file", "lines", "blank_lines"}})
        .add("text_key", &O::text_key, "Key of the text in the lines of a .jsonl file, each of which is a document.")
        .add("tokenizer", &O::tokenizer, fmt::format("{}; without weights, \"bytes\".", kTokenizerText))
        .add("block", &O::block,
             "Tokens of a sample. Documents follow one another without regard to blocks; the last, incomplete block is "
             "left out.",
             {.min = 2, .max = 1 << 24})
        .add(
            "masking", &O::masking,
            "For masked language modelling: the share of the tokens to predict, as 0.15; of these, 80 % are masked and "
            "10 % replaced by random tokens. 0: each token is predicted from those before it.",
            {.min = 0, .below = 1})
        .add("document_mask", &O::document_mask,
             "Tokens do not attend to other documents of their block, and positions begin at 0 in each document.")
        .rule([](const O& o, const CheckedSection& section) {
          if (!o.validation.empty() && o.validation_share)
            section.fail("validation_share", "has no effect with data.validation; remove one of the two");
        });
    return rows;
  }();
  return table;
}

/// The common name of a .bin and an .idx file that `named` means; "" if it means others.
std::string prefix_of(const std::string& named) {
  namespace fs = std::filesystem;
  auto prefix = named;
  if (named.ends_with(".bin") || named.ends_with(".idx")) prefix.resize(named.size() - 4);
  std::error_code error;
  return fs::exists(prefix + ".idx", error) ? prefix : "";
}

/// Gets the documents of files to tokens.
class DocumentTokeniser {
 public:
  DocumentTokeniser(const tokenizers::Tokenizer& tokenizer, TokenWriter& writer)
      : tokenizer_(tokenizer), writer_(writer) {
    if (const auto end = end_of_text(tokenizer.special()))
      end_ = {*end};
    else
      line_break_ = tokenizer.encode("\n");
  }
  void add(DocumentPiece piece) {
    bytes_ += piece.text.size();
    pieces_.push_back(std::move(piece));
    if (bytes_ >= kBytesAtOnce) write(pieces_.size() - 1);  // what follows the last one is not known yet
  }
  void finish() { write(pieces_.size()); }

 private:
  void write(std::size_t count) {
    auto encoded = encode_all(count, [&](std::size_t i) {
      const auto& piece = pieces_[i];
      return encode_at(std::string(piece.path), piece.line, [&] { return tokenizer_.encode(piece.text); });
    });
    for (std::size_t i = 0; i < count; ++i) {
      if (pieces_[i].ends) {
        const auto& behind = i + 1 < pieces_.size() && end_.empty() ? line_break_ : end_;
        encoded[i].insert(encoded[i].end(), behind.begin(), behind.end());
      }
      writer_.add_sequence(encoded[i]);
      if (pieces_[i].ends) writer_.end_document();
    }
    pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<std::ptrdiff_t>(count));
    bytes_ = pieces_.empty() ? 0 : pieces_.front().text.size();
  }

  const tokenizers::Tokenizer& tokenizer_;
  TokenWriter& writer_;
  tokenizers::Ids end_;         ///< behind each document
  tokenizers::Ids line_break_;  ///< between documents, without an end token
  std::vector<DocumentPiece> pieces_;
  std::size_t bytes_ = 0;
};

/// The formats of the sources, of all splits.
struct TextFormats {
  bool plain = false, json = false;
};

/// @throws ConfigError for a key of a format that no source has
void check_format_keys(const TextOptions& options, const TextFormats& found, const data::OpenContext& context) {
  if (!found.plain && options.documents != TextOptions{}.documents)
    config::fail(context.section, "documents", "has no effect, because no source is a plain text; remove it");
  if (!found.json && options.text_key != TextOptions{}.text_key)
    config::fail(context.section, "text_key", "has no effect, because no source is a .jsonl file; remove it");
}

/// The tokens of a split, with their digest.
struct SplitTokens {
  std::shared_ptr<const TokenFile> tokens;
  std::string digest;
};

SplitTokens tokens_of(const std::string& named, const TextOptions& options, const tokenizers::Tokenizer& tokenizer,
                      TextFormats& found, const data::OpenContext& context) {
  if (const auto prefix = prefix_of(named); !prefix.empty()) {
    auto tokens = TokenFile::open(prefix);
    const auto index = tokens->index_bytes();
    auto digest =
        fmt::format("{:08x}{:x} {}", crc32(0, index.data(), index.size()), tokens->tokens(), tokenizer.digest());
    return {std::move(tokens), std::move(digest)};
  }
  const DocumentOptions how{.documents = options.documents == "lines"         ? Documents::lines
                                         : options.documents == "blank_lines" ? Documents::blank_lines
                                                                              : Documents::file,
                            .text_key = options.text_key};
  Packer settings;
  for (const auto* each : {"text 1", options.documents.c_str(), options.text_key.c_str()}) settings.add(each);
  settings.add(tokenizer.digest());
  const TokenRecipe recipe{.sources = expand_shards(named, {std::begin(kTextEndings), std::end(kTextEndings)}),
                           .settings = settings.bytes,
                           .vocabulary = tokenizer.vocabulary()};
  for (const auto& path : recipe.sources) (is_jsonl(path) ? found.json : found.plain) = true;
  auto made = open_token_cache(
      recipe,
      [&](TokenWriter& writer) {
        DocumentTokeniser tokeniser(tokenizer, writer);
        read_documents(recipe.sources, how, [&](DocumentPiece piece) { tokeniser.add(std::move(piece)); });
        tokeniser.finish();
        return writer.digest();
      },
      context);
  return {std::move(made.tokens), std::move(made.extra)};
}

/// Where the validation split begins: at a share of the tokens before the end, or at the begin of a document that is
/// near.
std::int64_t validation_begin(const TokenFile& tokens, double share) {
  const auto wanted = std::max<std::int64_t>(1, std::llround(static_cast<double>(tokens.tokens()) * share));
  const auto exact = tokens.tokens() - wanted;
  const auto documents = std::views::iota(std::int64_t{0}, tokens.documents());
  const auto not_before =
      std::ranges::partition_point(documents, [&](auto i) { return tokens.document_begin(i) < exact; });
  const auto low = static_cast<std::int64_t>(not_before - documents.begin());
  auto best = exact;
  auto distance = wanted / 2;
  for (const auto document : {low - 1, low}) {
    if (document < 1 || document >= tokens.documents()) continue;
    const auto begin = tokens.document_begin(document);
    if (std::abs(begin - exact) <= distance) {
      best = begin;
      distance = std::abs(begin - exact);
    }
  }
  return best;
}

data::Datasets open_blocks(TextOptions& options, const data::OpenContext& context) {
  refuse_skipping(context);
  const auto tokenizer = choose_tokenizer(options.tokenizer, "bytes", context);
  if (options.masking > 0 && !tokenizer->special().mask)
    config::fail(context.section, "masking",
                 fmt::format("needs a tokenizer with a mask token, which {} has not; remove it, or choose another "
                             "data.tokenizer",
                             *options.tokenizer));
  auto files = split_files(options, {".txt", ".jsonl", ".idx", ""});
  if (files.empty()) {
    check_only_texts(options.path);
    files[data::Split::train] = options.path;
  }
  if (!files.contains(data::Split::train))
    throw DataError(fmt::format("{}: has {}, but no text of the train split: train.txt or train.jsonl", options.path,
                                files.begin()->second));
  std::map<data::Split, TokenRange> ranges;
  TextFormats found;
  data::Datasets out;
  for (const auto& [split, named] : files) {
    auto [tokens, digest] = tokens_of(named, options, *tokenizer, found, context);
    if (split == data::Split::train) out.info.digest = digest;
    ranges[split] = {tokens, 0, tokens->tokens(), named};
  }
  check_format_keys(options, found, context);
  if (options.document_mask && ranges.at(data::Split::train).tokens->documents() < 2)
    config::fail(context.section, "document_mask",
                 "has no effect, because the training text is one document; set data.documents, or remove it");
  out.info.about = fmt::format("{}; blocks of {}", tokenizer->about(), options.block);
  auto& train = ranges.at(data::Split::train);
  if (!ranges.contains(data::Split::validation)) {
    const auto share = options.validation_share.value_or(kValidationShare);
    const auto begin = validation_begin(*train.tokens, share);
    ranges[data::Split::validation] = {train.tokens, begin, train.end, train.source, /*is_cut_off=*/true};
    out.info.about += fmt::format("; validation: the last {} of {} tokens", text::thousands(train.end - begin),
                                  text::thousands(train.end));
    train.end = begin;
  } else if (options.validation_share) {
    config::fail(context.section, "validation_share",
                 fmt::format("has no effect, because there is a validation split: {}; remove it",
                             files.at(data::Split::validation)));
  }
  const BlockOptions how{.block = options.block,
                         .vocabulary = tokenizer->vocabulary(),
                         .masking = masking_of(options.masking, tokenizer->special()),
                         .seed = context.seed,
                         .document_mask = options.document_mask};
  for (auto& [split, range] : ranges) out.of(split) = token_blocks(std::move(range), how);
  out.info.spec = out.train->spec();
  out.info.spec.tokens = token_ids(*tokenizer);
  out.info.source = source_of(options);
  out.info.files = tokenizer->files();
  return out;
}

}  // namespace

data::DatasetFactory text(TextOptions options) { return {text_fields(), std::move(options), open_blocks}; }

}  // namespace trireme::datasets
