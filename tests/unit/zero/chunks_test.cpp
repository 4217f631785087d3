// The search for a chunk size: the least padding in its range, and the smallest of equally good sizes.
#include <gtest/gtest.h>

#include "core/nn/block.h"
#include "core/nn/layers/linear.h"
#include "zero/buckets.h"

namespace trireme::zero {
namespace {

class Product : public nn::Block {
 public:
  Product(std::int64_t in, std::int64_t out)
      : linear_(register_module(
            "linear", std::make_shared<nn::Linear>(nn::Linear::Options{.in = in, .out = out, .bias = false}))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {linear_->forward(inputs.front(), context)};
  }

 private:
  std::shared_ptr<nn::Linear> linear_;
};

/// Blocks of 30, 30 and 12 elements.
class Three : public nn::Model {
 public:
  Three() {
    add_block(register_module("0", std::make_shared<Product>(6, 5)));
    add_block(register_module("1", std::make_shared<Product>(5, 6)));
    add_block(register_module("2", std::make_shared<Product>(6, 2)));
    finish();
  }
};

std::int64_t elements_of(const std::vector<Bucket>& chunks) {
  std::int64_t total = 0;
  for (const auto& chunk : chunks) total += chunk.layout.total();
  return total;
}

TEST(Chunks, SearchStaysInItsRange) {
  Three model;
  for (const auto& [smallest, range, step] :
       {std::tuple{10, 0, 8}, {10, 32, 8}, {24, 16, 4}, {64, 64, 16}, {7, 100, 1}})
    for (const int parts : {1, 2, 4, 7}) {
      const ChunkSearch search{smallest, range, step};
      const auto found = search_chunk_elements(model, search, {.parts = parts});
      EXPECT_GE(found, smallest);
      EXPECT_LE(found, smallest + range);
      EXPECT_EQ((found - smallest) % step, 0);
      const auto padded = elements_of(plan_chunks(model, {.elements = found, .parts = parts}));
      for (std::int64_t size = smallest; size <= smallest + range; size += step) {
        const auto other = elements_of(plan_chunks(model, {.elements = size, .parts = parts}));
        EXPECT_LE(padded, other) << size;
        if (size < found) {
          EXPECT_LT(padded, other) << size << " is as good and smaller than " << found;
        }
      }
    }
}

}  // namespace
}  // namespace trireme::zero
