// Files that are damaged at random, for tests that everything else is refused in one message.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/random.h"

namespace trireme::tests {

/// How many files a test damages: `usual`, or what TRIREME_TEST_MUTATIONS says.
inline int mutations(int usual) {
  const char* wanted = std::getenv("TRIREME_TEST_MUTATIONS");
  return wanted == nullptr ? usual : std::atoi(wanted);
}

/// Numbers that only depend on a name and on how many were drawn.
class Draws {
 public:
  explicit Draws(const std::string& name) : key_(random::hash(name)) {}
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random::mix(key_, ++count_) % end); }

 private:
  std::uint64_t key_, count_ = 0;
};

/// Changes a few places of a text: a byte, a range that is left out or doubled, another file's word, the end.
inline void mutate(std::string& text, Draws& draws) {
  static const std::vector<std::string> kWords{
      "null", "-1", "{}",    "[]",    "\"\"",    "1e9",   "99999999999999999999", "true", "\xFF", "\n", " ",  "\\",
      "]",    "}",  "[CLS]", "\"A\"", "\\ud800", "(a*)*", "\"(a|b)+\"",           ",",    "0",    "\t", "\"", "\0\0",
      "\r\n"};
  for (auto times = 1 + draws.below(3); times > 0 && !text.empty(); --times) {
    const auto at = draws.below(text.size()), length = draws.below(std::min<std::size_t>(text.size() - at, 40) + 1);
    switch (draws.below(6)) {
      case 0:
        text[at] = static_cast<char>(draws.below(256));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.replace(at, length, kWords[draws.below(kWords.size())]);
        break;
      case 4:
        text.insert(at, kWords[draws.below(kWords.size())]);
        break;
      default:
        text.resize(draws.below(8) == 0 ? at : text.size());
        break;
    }
  }
}

}  // namespace trireme::tests
