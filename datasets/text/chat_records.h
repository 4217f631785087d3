// What a line of a chat file becomes: token ids, and which of them are answers, which a model learns.
//
// A record is one of
//   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
//   {"prompt": [messages], "completion": [messages]}    the same, of which only the completion is learned
//   {"prompt": "...", "completion": "..."}              texts without a template, with the tokenizer's end token
//   {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}    ShareGPT's
// and may have "tools" and "chat_template_kwargs", which its template reads. These are the records of Hugging Face's
// TRL, and ids and answers are those of its SFTTrainer.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tokenizers/chat_template.h"
#include "tokenizers/tokenizer.h"

namespace trireme::datasets {

enum class LossTokens { answers, all };

/// Tokens [begin, end) of a conversation.
struct TokenSpan {
  std::int32_t begin = 0, end = 0;
};

struct ConversationTokens {
  tokenizers::Ids ids;
  std::vector<TokenSpan> loss_spans;  ///< those that are learned, ascending
};

/// The conversation of a record that an assistant is to continue: its "messages", "prompt" or "conversations".
/// @throws DataError
tokenizers::Conversation conversation_to_continue(const nlohmann::ordered_json& record);

/// Thread-safe.
class ConversationEncoder {
 public:
  /// `chat`: null when no record needs one. @pre both outlive this
  ConversationEncoder(const tokenizers::Tokenizer& tokenizer, const tokenizers::ChatTemplate* chat,
                      LossTokens loss_tokens)
      : tokenizer_(tokenizer), chat_(chat), loss_tokens_(loss_tokens) {}
  /// @throws DataError that says what is wrong with the record
  [[nodiscard]] ConversationTokens encode(const nlohmann::ordered_json& record) const;

 private:
  [[nodiscard]] ConversationTokens encode_texts(const std::string& prompt, const std::string& completion) const;
  /// `prompt`: the messages at the begin of which nothing is learned.
  [[nodiscard]] ConversationTokens encode_messages(tokenizers::Conversation conversation, std::size_t prompt,
                                                   bool is_pair) const;
  /// The spans of the text that the assistant has written.
  [[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> answers_of(
      const tokenizers::Conversation& conversation, const std::string& text) const;

  const tokenizers::Tokenizer& tokenizer_;
  const tokenizers::ChatTemplate* chat_;
  LossTokens loss_tokens_;
};

}  // namespace trireme::datasets
