// Texts that anybody may have written, such as names of files, for a terminal, on which control characters would act.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

#include "core/base/text.h"

namespace trireme {

/// Control characters become '?', and bytes that are not UTF-8 \xNN.
inline std::string for_terminal(std::string_view text) {
  auto out = text::printable(text);
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
  return out;
}

}  // namespace trireme
