// The conversations that `trireme generate --chat` continues.
#pragma once

#include <string>
#include <vector>

#include "apps/command_line.h"
#include "tokenizers/chat_template.h"

namespace trireme::apps {

/// The conversations of the command line: one message of a user, one in each line of a file, or the records of a .jsonl
/// file, with "messages", "prompt" or "conversations" (datasets/text/chat_records.h).
/// @throws ConfigError, DataError
std::vector<tokenizers::Conversation> conversations_of(const GenerateCommand& command);

/// What a template writes behind an answer, without spaces around it: "<|im_end|>"; "" when that cannot be seen.
std::string end_of_answer(const tokenizers::ChatTemplate& chat);

/// The conversation with its answer: a line of JSON that the data set "chat" reads.
std::string answered(const tokenizers::Conversation& conversation, const std::string& answer);

}  // namespace trireme::apps
