#include "tokenizers/prefix_tree.h"

#include <algorithm>
#include <deque>

namespace trireme::tokenizers {

PrefixTree::PrefixTree(std::vector<std::pair<std::string_view, std::int32_t>> tokens) {
  std::sort(tokens.begin(), tokens.end());
  struct Open {
    std::uint32_t node;
    std::size_t first, end, depth;  ///< the tokens below it, which have `depth` bytes in common
  };
  std::deque<Open> open{{0, 0, tokens.size(), 0}};
  nodes_.emplace_back();
  for (; !open.empty(); open.pop_front()) {
    auto [node, first, end, depth] = open.front();
    for (; first < end && tokens[first].first.size() == depth; ++first) nodes_[node].id = tokens[first].second;
    nodes_[node].first = static_cast<std::uint32_t>(bytes_.size());
    while (first < end) {
      const auto byte = tokens[first].first[depth];
      auto next = first;
      while (next < end && tokens[next].first[depth] == byte) ++next;
      const auto child = static_cast<std::uint32_t>(nodes_.size());
      bytes_.push_back(static_cast<unsigned char>(byte));
      children_.push_back(child);
      nodes_.emplace_back();
      open.push_back({child, first, next, depth + 1});
      first = next;
    }
    nodes_[node].end = static_cast<std::uint32_t>(bytes_.size());
  }
}

std::uint32_t PrefixTree::child(const Node& node, unsigned char byte) const {
  const auto begin = bytes_.begin() + node.first, end = bytes_.begin() + node.end;
  const auto found = std::lower_bound(begin, end, byte);
  return found == end || *found != byte ? 0 : children_[static_cast<std::size_t>(found - bytes_.begin())];
}

}  // namespace trireme::tokenizers
