// BlockOrder: the order in which a pass enters blocks. It is recorded in the first pass and predicts the next blocks
// afterwards.
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
  /// Records that `block` is entered. If a pass deviates from the recorded order, the rest is recorded again.
  void enter(const nn::Block* block) {
    if (at_ < order_.size() && order_[at_] != block) order_.resize(at_);
    if (at_ == order_.size()) order_.push_back(block);
    ++at_;
  }
  /// The block that is entered `ahead` (from 1) positions after the current one; null when unknown or past the end.
  [[nodiscard]] const nn::Block* next(std::size_t ahead) const {
    const auto index = at_ + ahead - 1;
    return index < order_.size() ? order_[index] : nullptr;
  }
  /// The number of blocks entered so far in this pass.
  [[nodiscard]] std::size_t entered() const { return at_; }
  /// The blocks of a pass, in order, as recorded so far.
  [[nodiscard]] const std::vector<const nn::Block*>& blocks() const { return order_; }

 private:
  std::vector<const nn::Block*> order_;
  std::size_t at_ = 0;
};

}  // namespace trireme::zero
