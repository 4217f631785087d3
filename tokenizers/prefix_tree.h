// PrefixTree: which tokens a text begins with.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::tokenizers {

class PrefixTree {
 public:
  PrefixTree() = default;
  /// `tokens`: texts, none of which is empty, with their ids.
  explicit PrefixTree(std::vector<std::pair<std::string_view, std::int32_t>> tokens);

  /// Calls found(length, id) for each token that the text begins with, the shortest first.
  template <class Found>
  void prefixes(std::string_view text, Found&& found) const {
    if (nodes_.empty()) return;
    std::uint32_t at = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      at = child(nodes_[at], static_cast<unsigned char>(text[i]));
      if (at == 0) return;
      if (nodes_[at].id >= 0) found(i + 1, nodes_[at].id);
    }
  }

 private:
  struct Node {
    std::int32_t id = -1;              ///< of the token that ends here
    std::uint32_t first = 0, end = 0;  ///< its edges
  };
  /// 0: there is none, for the root is no child.
  [[nodiscard]] std::uint32_t child(const Node& node, unsigned char byte) const;

  std::vector<Node> nodes_;              ///< the root first
  std::vector<unsigned char> bytes_;     ///< of the edges, sorted within a node
  std::vector<std::uint32_t> children_;  ///< where they lead
};

}  // namespace trireme::tokenizers
