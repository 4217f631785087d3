// BlockOrder: the order in which a pass enters blocks, learned once, then foretold.
#pragma once

#include <cstddef>
#include <vector>

namespace trireme::nn {
class Block;
}

namespace trireme::zero {

class BlockOrder {
 public:
  void begin() { at_ = 0; }
  /// Notes that `block` is entered. A pass that goes another way is learned anew.
  void enter(const nn::Block* block) {
    if (at_ < order_.size() && order_[at_] != block) order_.resize(at_);
    if (at_ == order_.size()) order_.push_back(block);
    ++at_;
  }
  /// The block that is entered `ahead` (from 1) after the present one; null: not known, or none.
  [[nodiscard]] const nn::Block* next(std::size_t ahead) const {
    const auto index = at_ + ahead - 1;
    return index < order_.size() ? order_[index] : nullptr;
  }
  /// Blocks entered in this pass.
  [[nodiscard]] std::size_t entered() const { return at_; }
  /// Of a pass, as far as it is known.
  [[nodiscard]] const std::vector<const nn::Block*>& blocks() const { return order_; }

 private:
  std::vector<const nn::Block*> order_;
  std::size_t at_ = 0;
};

}  // namespace trireme::zero
