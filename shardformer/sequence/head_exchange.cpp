#include "shardformer/sequence/head_exchange.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <utility>

#include "core/nn/autograd/saved_state.h"
#include "core/shard/placement.h"

namespace trireme::shardformer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kHeads = 1, kTokens = 2;  // dims

struct Exchange {
  comm::Group group;
  std::vector<std::int64_t> heads;   ///< of each tensor, on all ranks
  std::vector<std::int64_t> tokens;  ///< full number of tokens of each tensor

  [[nodiscard]] variable_list run(at::TensorList x, bool to_heads) const {
    const int size = group.size();
    variable_list sent, received;
    for (int r = 0; r < size; ++r) {
      variable_list parts;
      std::int64_t incoming = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto mine = to_heads ? head_share(i, r) : token_share(i, r);
        parts.push_back(x[i].narrow(to_heads ? kHeads : kTokens, mine.begin, mine.size()).reshape(-1));
        incoming += c10::multiply_integers(shape_from(x[i], i, r, to_heads));
      }
      sent.push_back(at::cat(parts));
      received.push_back(at::empty({incoming}, x[0].options()));
    }
    group.all_to_all(received, sent);
    return joined(x, received, to_heads);
  }

 private:
  [[nodiscard]] shard::Range head_share(std::size_t i, int rank) const {
    return shard::split(heads[i], group.size(), rank);
  }
  [[nodiscard]] shard::Range token_share(std::size_t i, int rank) const {
    return shard::split(tokens[i], group.size(), rank);
  }
  /// Shape of the part of tensor i that rank `from` sends to this rank.
  [[nodiscard]] std::vector<std::int64_t> shape_from(const at::Tensor& x, std::size_t i, int from,
                                                     bool to_heads) const {
    const int head_rank = to_heads ? group.rank() : from, token_rank = to_heads ? from : group.rank();
    return {x.size(0), head_share(i, head_rank).size(), token_share(i, token_rank).size(), x.size(3)};
  }
  [[nodiscard]] variable_list joined(at::TensorList x, const variable_list& received, bool to_heads) const {
    std::vector<std::int64_t> at(received.size());
    variable_list out;
    for (std::size_t i = 0; i < x.size(); ++i) {
      variable_list parts;
      for (std::size_t r = 0; r < received.size(); ++r) {
        const auto shape = shape_from(x[i], i, static_cast<int>(r), to_heads);
        const auto size = c10::multiply_integers(shape);
        parts.push_back(received[r].narrow(0, std::exchange(at[r], at[r] + size), size).view(shape));
      }
      out.push_back(at::cat(parts, to_heads ? kTokens : kHeads));
    }
    return out;
  }
};

struct Swap : torch::autograd::Function<Swap> {
  // TensorList is the only list type whose tensors become inputs of the node.
  static variable_list forward(AutogradContext* ctx, const std::shared_ptr<Exchange>& exchange, bool to_heads,
                               at::TensorList x) {
    nn::save_state(ctx, exchange);
    ctx->saved_data["to_heads"] = to_heads;
    return exchange->run(x, to_heads);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto exchange = nn::saved_state<Exchange>(ctx);
    variable_list result(2);  // for the exchange and its direction, which have none
    for (auto& gradient : exchange->run(grads, !ctx->saved_data.at("to_heads").toBool()))
      result.push_back(std::move(gradient));
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> tokens_to_heads(const std::vector<at::Tensor>& x, const std::vector<std::int64_t>& tokens,
                                        const comm::Group& group) {
  std::vector<std::int64_t> heads;
  for (const auto& tensor : x) heads.push_back(tensor.size(kHeads));
  return Swap::apply(std::make_shared<Exchange>(Exchange{group, std::move(heads), tokens}), true, at::TensorList(x));
}

at::Tensor heads_to_tokens(const at::Tensor& x, std::int64_t heads, const comm::Group& group) {
  const auto exchange = std::make_shared<Exchange>(Exchange{group, {heads}, {x.size(kTokens)}});
  return Swap::apply(exchange, false, at::TensorList(x)).front();
}

}  // namespace trireme::shardformer
