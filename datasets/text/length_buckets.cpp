#include "datasets/text/length_buckets.h"

#include <algorithm>

#include "core/base/random.h"

namespace trireme::datasets {

void take_longest(const TokenFile& tokens, std::int64_t multiple, nn::DataSpec& spec) {
  for (std::int64_t i = 0; i < tokens.sequences(); ++i)
    spec.longest = std::max(spec.longest, (tokens.length(i) + multiple - 1) / multiple * multiple);
}

std::vector<std::int64_t> order_in_buckets(std::vector<std::int64_t> shuffled, const data::Shuffle& shuffle,
                                           const std::function<std::int64_t(std::int64_t)>& length_of) {
  constexpr std::int64_t kWindow = 100;  // global batches: enough for like lengths, few enough for other ones next time
  const auto batch = shuffle.global_batch;
  if (batch <= 0) return shuffled;
  const auto batches = static_cast<std::int64_t>(shuffled.size()) / batch;
  for (std::int64_t from = 0; from < batches; from += kWindow)
    std::stable_sort(shuffled.begin() + from * batch, shuffled.begin() + std::min(from + kWindow, batches) * batch,
                     [&](std::int64_t a, std::int64_t b) { return length_of(a) < length_of(b); });
  const auto key = random::mix(shuffle.seed, random::hash("length buckets"), shuffle.epoch);
  std::vector<std::int64_t> out;
  out.reserve(shuffled.size());
  for (const auto which : random::permutation(key, batches))
    out.insert(out.end(), shuffled.begin() + which * batch, shuffled.begin() + (which + 1) * batch);
  out.insert(out.end(), shuffled.begin() + batches * batch, shuffled.end());
  return out;
}

}  // namespace trireme::datasets
