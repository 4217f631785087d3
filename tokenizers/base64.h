// Base64 (RFC 4648, section 4).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace trireme::tokenizers {

/// The bytes; nullopt when the text is not base64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace trireme::tokenizers
