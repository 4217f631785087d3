#include "core/train/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/booster/local_model.h"
#include "core/nn/block.h"
#include "core/nn/layers/tokens.h"
#include "core/setup/deterministic.h"
#include "core/train/next_token.h"
#include "core/train/out_of_memory.h"

namespace trireme::train {
namespace {

/// Lets the model's head read the last token only: the scores of the others are not used.
void read_last_token(nn::Model& model) {
  for (const auto& module : model.modules())
    if (auto* tokens = dynamic_cast<nn::AllTokens*>(module.get()))
      tokens->forward.replace([](const at::Tensor& x, const nn::Context&) { return x.narrow(1, x.size(1) - 1, 1); });
}

/// The model's option of this name, if it has one and it is a number; else 0.
std::int64_t number_option(const RunSetup& setup, const char* key) {
  const auto* field = setup.model.kind->fields().find(key);
  const auto value = field == nullptr ? FieldValue() : field->get(setup.model.options.get());
  const auto* number = std::get_if<std::int64_t>(&value);
  return number == nullptr ? 0 : *number;
}

void check_prompt(const std::vector<std::int64_t>& ids, std::int64_t vocabulary) {
  if (ids.empty()) throw DataError("the prompt has no tokens; give one with some text");
  if (vocabulary == 0) return;
  for (const auto id : ids)
    if (id < 0 || id >= vocabulary)
      throw DataError(
          fmt::format("the prompt has the token id {}, but the model's vocabulary has {} tokens (0 to {}); use the "
                      "tokenizer that the model was trained with",
                      id, vocabulary, vocabulary - 1));
}

}  // namespace

std::int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, std::int64_t draw) {
  const auto scores = logits.to(at::TensorOptions(at::kCPU).dtype(at::kDouble)).contiguous();
  const auto* score = scores.const_data_ptr<double>();
  const auto count = scores.numel();
  TRIREME_REQUIRE(scores.dim() == 1 && count > 0, "sample_token() needs the scores of one position, [V]");
  const auto* best = std::max_element(score, score + count);
  if (!std::isfinite(*best) || std::any_of(score, score + count, [](double s) { return std::isnan(s); }))
    throw NonFiniteError("the model's scores are not finite, so no token can be chosen; check its weights");
  if (options.temperature == 0) return best - score;
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  const auto most = options.top_k > 0 ? std::min(options.top_k, count) : count;
  if (most < count || options.top_p < 1) {
    const auto end = ids.begin() + most;
    std::partial_sort(ids.begin(), end, ids.end(),
                      [score](auto a, auto b) { return score[a] != score[b] ? score[a] > score[b] : a < b; });
    ids.erase(end, ids.end());
  }
  std::vector<double> sums;  // of the probabilities up to each token, times a constant
  for (const auto id : ids)
    sums.push_back((sums.empty() ? 0 : sums.back()) + std::exp((score[id] - *best) / options.temperature));
  if (options.top_p < 1)
    sums.erase(std::lower_bound(sums.begin(), sums.end() - 1, options.top_p * sums.back()) + 1, sums.end());
  const auto key = random::mix(options.seed, random::hash("generate"));
  const auto at = random::uniform(key, static_cast<std::uint64_t>(draw)) * sums.back();
  const auto found = std::upper_bound(sums.begin(), sums.end() - 1, at);
  return ids[static_cast<std::size_t>(found - sums.begin())];
}

LanguageModel open_language_model(const RunSetup& setup, c10::Device device) {
  auto source = setup.model.source();
  const auto options = booster_options(setup);
  auto parameters = materialize_whole(source, options, device, setup.log);
  read_last_token(*source.model);
  const auto model = std::make_shared<LocalModel>(source.model, std::move(parameters), options, device);
  model->train(false);
  const auto config = std::make_shared<const RunConfig>(setup.config);
  auto forward = [model, device, config](const std::vector<std::int64_t>& ids, std::int64_t first) {
    const at::NoGradGuard no_grad;
    data::Batch batch;
    batch.inputs.set("input_ids", at::tensor(ids).unsqueeze(0).to(device));
    const auto end = first + static_cast<std::int64_t>(ids.size());
    if (first > 0) batch.inputs.set("position_ids", at::arange(first, end).unsqueeze(0).to(device));
    batch.sample_ids = at::tensor(std::vector<std::int64_t>{0});
    at::Tensor logits;
    const auto compute = [&] { logits = model->forward(batch).at(0).select(0, 0).select(0, -1); };
    with_memory_remedy([&] { with_deterministic_remedy(*config, compute); },
                       [] { return std::string(" in a generation: use a device with more memory"); });
    return logits;
  };
  const auto next = std::make_shared<NextToken>(*source.model, std::move(forward));
  return {.next_logits = [next](const std::vector<std::int64_t>& ids) { return (*next)(ids); },
          .vocabulary = number_option(setup, "vocab_size"),
          .positions = number_option(setup, "max_positions")};
}

std::vector<std::int64_t> generate(const LanguageModel& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options) {
  check_prompt(prompt, model.vocabulary);
  std::vector<std::int64_t> text = std::move(prompt), made;
  for (std::int64_t draw = 0; draw < options.tokens; ++draw) {
    const auto size = static_cast<std::int64_t>(text.size());
    const auto seen = model.positions == 0 ? size : std::min(size, model.positions);
    auto logits = model.next_logits({text.end() - seen, text.end()});
    if (options.vocabulary > 0) logits = logits.narrow(0, 0, std::min(logits.size(0), options.vocabulary));
    const auto id = sample_token(logits, options.sampling, draw);
    if (std::find(options.ends.begin(), options.ends.end(), id) != options.ends.end()) break;
    text.push_back(id);
    made.push_back(id);
  }
  return made;
}

}  // namespace trireme::train
