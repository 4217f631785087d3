#include "tokenizers/vocabulary.h"

#include <algorithm>

namespace trireme::tokenizers {

void Vocabulary::set(std::string text, std::int32_t id) {
  longest_ = std::max(longest_, text.size());
  end_ = std::max<std::int64_t>(end_, std::int64_t{id} + 1);
  const auto [at, is_new] = ids_.try_emplace(std::move(text), id);
  if (!is_new) {
    texts_.erase(at->second);
    at->second = id;
  }
  texts_[id] = &at->first;
}

}  // namespace trireme::tokenizers
