// ChatTemplate: makes one text of a conversation, as transformers' apply_chat_template() does. A template is in Jinja
// (jinja/template.h): a tokenizer has it in chat_template.jinja, or as "chat_template" in tokenizer_config.json.
#pragma once

#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tokenizers/jinja/template.h"
#include "tokenizers/tokenizer.h"

namespace trireme::tokenizers {

/// What a template reads; null: it is not there.
struct Conversation {
  nlohmann::ordered_json messages;     ///< a list of {"role": "user", "content": "..."}
  nlohmann::ordered_json tools{};      ///< the tools that the model may call
  nlohmann::ordered_json variables{};  ///< more variables of the template, by name: {"enable_thinking": false}
  /// What the template's strftime_now() says. Unset: there is none, and templates take a date that they name.
  std::optional<std::time_t> now{};
};

inline constexpr const char* kChatTemplateFile = "chat_template.jinja";
/// The name of OpenAI's ChatML, a template for tokenizers that have none.
inline constexpr const char* kChatMl = "chatml";
/// For errors where ChatTemplate::of() is unset.
inline constexpr const char* kNoChatTemplate =
    "the tokenizer has no chat template (chat_template.jinja, or \"chat_template\" in tokenizer_config.json); name a "
    "file with one, or \"chatml\"";

/// Thread-safe.
class ChatTemplate {
 public:
  /// `named`: "" for that of the tokenizer, kChatMl, or a file. Unset when the tokenizer has none.
  /// @throws DataError for a file that cannot be read, or that is not a template
  static std::optional<ChatTemplate> of(const Tokenizer& tokenizer, const std::string& named);

  /// `opens_answer`: the text ends where the assistant's next message begins. @throws DataError with the template's
  /// own error, or for what the template cannot do with these messages
  [[nodiscard]] jinja::Rendered render(const Conversation& conversation, bool opens_answer) const;
  /// Whether Rendered::generated has the assistant's messages: the template has {% generation %}.
  [[nodiscard]] bool marks_answers(const Conversation& conversation) const {
    return template_for(conversation).has_generation();
  }
  [[nodiscard]] const std::string& source() const { return source_; }
  /// Of everything that the texts depend on, besides the conversations.
  [[nodiscard]] const std::string& digest() const { return digest_; }

 private:
  struct Source {
    std::string text, with_tools, name;  ///< with_tools: "" for none of its own; name: for errors
  };
  ChatTemplate(const Tokenizer& tokenizer, const Source& source);
  [[nodiscard]] const jinja::Template& template_for(const Conversation& conversation) const {
    return with_tools_ && !conversation.tools.is_null() ? *with_tools_ : template_;
  }

  jinja::Template template_;
  std::optional<jinja::Template> with_tools_;  ///< for conversations with tools, where the tokenizer has two templates
  nlohmann::ordered_json tokens_;              ///< the texts of the special tokens: {"bos_token": "<s>"}
  std::string source_, name_, digest_;
};

}  // namespace trireme::tokenizers
