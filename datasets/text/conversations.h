// One split of conversations, samples of a causal language model. They are tokenised once (token_cache.h).
//
// Labels are the ids of the tokens that are learned, else -100, as in Hugging Face's models (the task compares each
// output with the next id); the first token of a conversation follows nothing, and is never learned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/datasets.h"
#include "datasets/text/chat_records.h"
#include "datasets/text/token_cache.h"

namespace trireme::datasets {

/// A file of conversations, tokenised.
struct TokenisedChats {
  std::string path;
  std::shared_ptr<const TokenFile> tokens;         ///< a sequence a conversation
  std::string digest;                              ///< of the ids and of what is learned
  std::int64_t cut = 0;                            ///< conversations that had more than max_tokens
  std::vector<std::vector<TokenSpan>> loss_spans;  ///< of each conversation
};

struct ChatRecipe {
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer;
  std::optional<tokenizers::ChatTemplate> chat_template{};  ///< unset: only pairs of texts can be read
  LossTokens loss_tokens = LossTokens::answers;
  std::int64_t max_tokens = 0;  ///< longer conversations lose their end
};

/// @throws DataError that names file and line
std::shared_ptr<const TokenisedChats> tokenise_chats(const std::string& path, const ChatRecipe& recipe,
                                                     const data::OpenContext& context);

struct ConversationOptions {
  std::int64_t padding = 0;       ///< id
  std::int64_t pad_multiple = 1;  ///< lengths are padded to a multiple
  bool length_buckets = false;
  /// Tokens of a sample that holds several conversations, which do not attend to each other and whose positions begin
  /// at 0 (packing.h); 0: each is a sample.
  std::int64_t block = 0;
};

/// Samples, T tokens: input_ids and attention_mask int64 [T]; in blocks input_ids, document_ids (1, 2, ..., and 0 for
/// padding) and position_ids. Targets: labels int64 [T]. `rows`: the conversations that the samples have.
std::shared_ptr<data::Dataset> conversations(std::shared_ptr<const TokenisedChats> chats,
                                             const ConversationOptions& options, std::int64_t vocabulary,
                                             std::vector<std::int64_t> rows);

}  // namespace trireme::datasets
