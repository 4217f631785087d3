// The data set "chat": conversations, and pairs of prompt and answer.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "datasets/datasets.h"
#include "datasets/held_out.h"
#include "datasets/split_files.h"
#include "datasets/text/conversations.h"
#include "datasets/text/encode.h"
#include "datasets/text/length_buckets.h"
#include "datasets/text/tokenizer_choice.h"

namespace trireme::datasets {
namespace {

const Fields<ChatOptions>& chat_fields() {
  using O = ChatOptions;
  static const auto table = [] {
    Fields<O> rows("data",
                   "Conversations for language models, of whose tokens only the answers are learned: .jsonl files, "
                   "whose lines have \"messages\", or \"prompt\" and \"completion\".");
    rows.with("name", "chat");
    add_split_fields(rows, "train.jsonl, validation.jsonl (or valid, val, dev) and, if there is one, test.jsonl",
                     "File .jsonl");
    add_held_out_fields(rows, "conversations");
    rows.add("tokenizer", &O::tokenizer, fmt::format("{}; without weights, \"bytes\".", kTokenizerText))
        .add(
            "chat_template", &O::chat_template,
            "How messages become a text: a file with a template in Jinja, or \"chatml\". Empty: the tokenizer's. Pairs "
            "of texts need none.")
        .add("loss", &O::loss, "Which tokens are learned: those of the answers, or all.",
             {.choices = {"answers", "all"}})
        .add("max_tokens", &O::max_tokens, "Tokens of a conversation at most; a longer one loses its end.",
             {.min = 2, .max = 1 << 24})
        .add("packing", &O::packing,
             "Put several conversations into a sample of max_tokens, so that little is padded. They do not attend to "
             "each other, and the positions of each begin at 0.");
    add_length_fields(rows).rule([](const O& o, const CheckedSection& section) {
      if (o.packing && o.length_buckets)
        section.fail("length_buckets", "has no effect with packing, whose samples are all of one length; remove it");
      if (o.packing && o.pad_multiple != O{}.pad_multiple)
        section.fail("pad_multiple", "has no effect with packing, which pads to max_tokens; remove it");
    });
    return rows;
  }();
  return table;
}

/// Says of how much nothing, or not all, is learned. @throws DataError when nothing is at all
void report(const TokenisedChats& chats, std::int64_t max_tokens, const Log& log) {
  const auto count = chats.tokens->sequences();
  const auto empty = std::count_if(chats.loss_spans.begin(), chats.loss_spans.end(), [](const auto& spans) {
    return std::all_of(spans.begin(), spans.end(),
                       [](const auto& span) { return std::max(span.begin, 1) >= span.end; });
  });
  if (empty == count)
    throw DataError(fmt::format("{}: there is nothing to learn: no conversation has a token of an answer{}", chats.path,
                                chats.cut > 0 ? "; raise data.max_tokens"
                                              : ", behind its first token; correct the answers or the chat template"));
  if (chats.cut > 0)
    log.note("data: {}: {} of {} conversations are longer than data.max_tokens = {} and lose their end", chats.path,
             text::thousands(chats.cut), text::thousands(count), max_tokens);
  if (empty > 0)
    log.note("data: {}: of {} of {} conversations nothing is learned, because no token of an answer is left",
             chats.path, text::thousands(empty), text::thousands(count));
}

data::Datasets open_chat(ChatOptions& options, const data::OpenContext& context) {
  refuse_skipping(context);
  const auto tokenizer = choose_tokenizer(options.tokenizer, "bytes", context);
  const ChatRecipe recipe{.tokenizer = tokenizer,
                          .chat_template = choose_chat_template(options.chat_template, *tokenizer),
                          .loss_tokens = options.loss == "all" ? LossTokens::all : LossTokens::answers,
                          .max_tokens = options.max_tokens};
  const auto& special = tokenizer->special();
  if (!special.end)
    context.log.note(
        "data: the tokenizer has no end token, so that answers do not end by themselves when they are "
        "generated");
  const ConversationOptions how{.padding = special.padding.value_or(special.end.value_or(0)),
                                .pad_multiple = options.pad_multiple,
                                .length_buckets = options.length_buckets,
                                .block = options.packing ? options.max_tokens : 0};
  data::Datasets out;
  std::int64_t trained = 0, tokens = 0;  // conversations to train on, and their tokens
  const auto samples_of = [&](const auto& chats, std::vector<std::int64_t> rows) {
    return conversations(chats, how, tokenizer->vocabulary(), std::move(rows));
  };
  for (const auto& [split, file] :
       required_splits(options, options, {".jsonl"}, {"file", "conversations", ".jsonl"}, context)) {
    const auto chats = tokenise_chats(file, recipe, context);
    report(*chats, options.max_tokens, context.log);
    const auto count = chats->tokens->sequences();
    if (split == data::Split::train) {
      out.info.digest = chats->digest;
      out.info.spec = samples_of(chats, {})->spec();
    }
    take_longest(*chats->tokens, options.pad_multiple, out.info.spec);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
    std::iota(rows.begin(), rows.end(), 0);
    if (split == data::Split::train && options.taken_by() != nullptr) {
      auto held = hold_out_as(
          options, count, [](std::int64_t) { return 0; },
          {file, "conversations", out.info.spec.targets.front(), {}, context.log}, out.info.digest);
      out.validation = samples_of(chats, std::move(held.validation));
      rows = std::move(held.train);
    }
    if (split == data::Split::train) {
      trained = std::ssize(rows);
      for (const auto row : rows) tokens += chats->tokens->length(row);
    }
    out.of(split) = samples_of(chats, std::move(rows));
  }
  out.info.spec.tokens = token_ids(*tokenizer);
  if (options.packing) out.info.spec.longest = options.max_tokens;
  out.info.spec.longest_key = "data.max_tokens";
  out.info.source = source_of(options);
  const auto room = static_cast<double>(out.train->size() * options.max_tokens);
  out.info.about =
      tokenizer->about() +
      (options.packing ? fmt::format("; {} conversations in samples of {}, {:.0f} % full", text::thousands(trained),
                                     options.max_tokens, 100 * static_cast<double>(tokens) / room)
                       : fmt::format("; up to {} a conversation{}", options.max_tokens,
                                     options.length_buckets ? ", in buckets of like lengths" : ""));
  out.info.files = tokenizer->files();
  if (!options.chat_template.empty()) out.info.files[tokenizers::kChatTemplateFile] = recipe.chat_template->source();
  return out;
}

}  // namespace

data::DatasetFactory chat(ChatOptions options) { return {chat_fields(), std::move(options), open_chat}; }

}  // namespace trireme::datasets
