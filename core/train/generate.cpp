#include "core/train/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/booster/local_model.h"
#include "core/nn/block.h"
#include "core/nn/layers/tokens.h"
#include "core/setup/deterministic.h"
#include "core/train/out_of_memory.h"

namespace trireme::train {
namespace {

/// x [B, N, ...] -> [B, 1, ...]: the token at `last`, int64 [B], of each text.
at::Tensor tokens_at(const at::Tensor& x, const at::Tensor& last) {
  return x.gather(1, last.view({-1, 1, 1}).expand({-1, 1, x.size(2)}));
}

/// Lets the model's head read the last token of each text only: the scores of the others are not used.
void read_last_token(nn::Model& model, const std::shared_ptr<const at::Tensor>& last) {
  for (const auto& module : model.modules())
    if (auto* tokens = dynamic_cast<nn::AllTokens*>(module.get()))
      tokens->forward.replace([last](const at::Tensor& x, const nn::Context&) { return tokens_at(x, *last); });
}

/// The model's option of this name, if it has one and it is a number; else 0.
std::int64_t number_option(const RunSetup& setup, const char* key) {
  const auto* field = setup.model.kind->fields().find(key);
  const auto value = field == nullptr ? FieldValue() : field->get(setup.model.options.get());
  const auto* number = std::get_if<std::int64_t>(&value);
  return number == nullptr ? 0 : *number;
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

namespace {

bool ends_with(std::span<const std::int64_t> text, std::span<const std::int64_t> end) {
  return text.size() >= end.size() && std::ranges::equal(text.last(end.size()), end);
}

}  // namespace

LanguageModel open_language_model(const RunSetup& setup, c10::Device device) {
  auto source = setup.model.source();
  const auto options = booster_options(setup.config);
  auto parameters = materialize_whole(source, options, device, setup.log);
  const auto last = std::make_shared<at::Tensor>();
  read_last_token(*source.model, last);
  const auto model = std::make_shared<LocalModel>(source.model, std::move(parameters), options, device);
  model->train(false);
  const auto config = std::make_shared<const RunConfig>(setup.config);
  auto forward = [model, device, config, last](const NextToken::Pass& pass) {
    const at::NoGradGuard no_grad;
    data::Batch batch;
    batch.inputs.set("input_ids", pass.ids.to(device));
    if (pass.positions.defined()) batch.inputs.set("position_ids", pass.positions.to(device));
    batch.sample_ids = at::arange(pass.ids.size(0));
    *last = pass.last.to(device);
    at::Tensor logits;
    const auto compute = [&] {
      logits = model->forward(batch).at(0);
      if (logits.size(1) > 1) logits = tokens_at(logits, *last);
      logits = logits.select(1, 0);
    };
    with_memory_remedy([&] { with_deterministic_remedy(*config, compute); },
                       [] { return std::string(" in a generation: use a device with more memory"); });
    return logits;
  };
  const auto next = std::make_shared<NextToken>(*source.model, std::move(forward));
  return {.next_logits = [next](const Texts& texts) { return (*next)(texts); },
          .vocabulary = number_option(setup, "vocab_size"),
          .positions = number_option(setup, "max_positions")};
}

void check_prompts(const LanguageModel& model, const Texts& prompts) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto name = prompts.size() == 1 ? std::string("the prompt") : fmt::format("prompt {}", i + 1);
    if (prompts[i].empty()) throw DataError(name + " has no tokens; give one with some text");
    for (const auto id : prompts[i])
      if (model.vocabulary > 0 && (id < 0 || id >= model.vocabulary))
        throw DataError(
            fmt::format("{} has the token id {}, but the model's vocabulary has {} tokens (0 to {}); use the tokenizer "
                        "that the model was trained with",
                        name, id, model.vocabulary, model.vocabulary - 1));
  }
}

Texts generate(const LanguageModel& model, const Texts& prompts, const GenerateOptions& options) {
  check_prompts(model, prompts);
  Texts texts = prompts, seen(prompts.size()), made(prompts.size());
  std::vector<bool> has_ended(prompts.size());
  for (std::int64_t draw = 0; draw < options.tokens; ++draw) {
    if (std::all_of(has_ended.begin(), has_ended.end(), [](bool each) { return each; })) break;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto size = static_cast<std::int64_t>(texts[i].size());
      const auto count = model.positions == 0 ? size : std::min(size, model.positions);
      seen[i].assign(texts[i].end() - count, texts[i].end());
    }
    auto logits = model.next_logits(seen).to(at::kCPU);
    if (options.vocabulary > 0) logits = logits.narrow(1, 0, std::min(logits.size(1), options.vocabulary));
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (has_ended[i]) continue;
      const auto id = sample_token(logits[static_cast<std::int64_t>(i)], options.sampling, draw);
      texts[i].push_back(id);
      made[i].push_back(id);
      for (const auto& end : options.ends)
        if (!has_ended[i] && ends_with(made[i], end)) {
          made[i].resize(made[i].size() - end.size());
          has_ended[i] = true;
        }
    }
  }
  return made;
}

}  // namespace trireme::train
