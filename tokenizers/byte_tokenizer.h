// The tokenizer "bytes": each byte is a token, so every text has ids and needs no files.
#pragma once

#include <memory>

#include "tokenizers/tokenizer.h"

namespace trireme::tokenizers {

std::shared_ptr<const Tokenizer> make_byte_tokenizer();

}  // namespace trireme::tokenizers
