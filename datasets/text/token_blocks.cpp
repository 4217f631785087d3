#include "datasets/text/token_blocks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "core/data/rows.h"
#include "core/nn/layers/index_checks.h"

namespace trireme::datasets {
namespace {

constexpr double kMasked = 0.8, kReplaced = 0.1;

class TokenBlocks : public data::RowDataset {
 public:
  TokenBlocks(TokenRange range, std::int64_t block, std::int64_t vocabulary, Masking masking, std::uint64_t seed)
      : range_(std::move(range)), block_(block), masking_(std::move(masking)), seed_(seed) {
    if (size() == 0)
      throw DataError(fmt::format("{}: {}{} are fewer than a block of {}; {}lower data.block, or add text",
                                  range_.source, text::quantity(range_.end - range_.begin, "token"),
                                  range_.is_cut_off ? " for the validation split" : "", block_,
                                  range_.is_cut_off ? "raise data.validation_share, " : ""));
    spec_ = {.inputs = {{"input_ids", at::kLong, {block}}},
             .targets = {{nn::kLabels, at::kLong, {block}}},
             .vocabulary = vocabulary,
             .ignored_labels = masking_.share > 0};
  }
  [[nodiscard]] std::int64_t size() const override { return (range_.end - range_.begin) / block_; }
  [[nodiscard]] nn::DataSpec spec() override { return spec_; }
  [[nodiscard]] data::RowSpec row_spec(const std::vector<std::string>& inputs, bool /*augment*/) const override {
    data::RowSpec out{.inputs = spec_.inputs, .targets = spec_.targets};
    if (std::find(inputs.begin(), inputs.end(), spec_.inputs.front().name) == inputs.end()) out.inputs.clear();
    return out;
  }
  /// @throws DataError for an id beyond the vocabulary
  std::optional<data::Sample> read(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                                   bool augment) override {
    auto ids = at::empty({block_}, at::kLong);
    const std::span values(ids.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(block_));
    const auto first = range_.begin + index * block_;
    range_.tokens->read(first, values);
    for (std::size_t t = 0; t < values.size(); ++t)
      if (values[t] < 0 || values[t] >= spec_.vocabulary)
        throw DataError(
            fmt::format("{}: token {} has the id {}, but the tokenizer has {}; name the tokenizer of these "
                        "tokens with data.tokenizer",
                        range_.tokens->name(), first + static_cast<std::int64_t>(t), values[t],
                        text::quantity(spec_.vocabulary, "token")));
    auto labels = masking_.share > 0 ? mask(ids, index, epoch, augment) : ids;
    data::Sample sample{{}, {{nn::kLabels, std::move(labels)}}};
    if (std::find(inputs.begin(), inputs.end(), spec_.inputs.front().name) != inputs.end())
      sample.inputs.set(spec_.inputs.front().name, std::move(ids));
    return sample;
  }
  [[nodiscard]] data::Sample transform_batch(data::Sample batch, bool /*combine*/) const override { return batch; }

 private:
  /// Masks the ids in place and returns the labels.
  [[nodiscard]] at::Tensor mask(const at::Tensor& ids, std::int64_t index, std::int64_t epoch, bool augment) const {
    auto labels = at::full_like(ids, nn::kNoLabel);
    auto* id = ids.mutable_data_ptr<std::int64_t>();
    auto* label = labels.mutable_data_ptr<std::int64_t>();
    const auto purpose = random::hash(augment ? "masking" : "masking of an evaluation");
    const auto key = random::mix(seed_, purpose, augment ? epoch : 0, index);
    for (std::int64_t t = 0; t < block_; ++t) {
      const auto drawn = random::philox(key, 0, static_cast<std::uint64_t>(t));
      if (random::to_unit(drawn.v[0]) >= masking_.share ||
          std::find(masking_.special.begin(), masking_.special.end(), id[t]) != masking_.special.end())
        continue;
      label[t] = id[t];
      const auto what = random::to_unit(drawn.v[1]);
      if (what < kMasked)
        id[t] = masking_.mask;
      else if (what < kMasked + kReplaced)
        id[t] = static_cast<std::int64_t>(random::to_unit(drawn.v[2]) * static_cast<double>(spec_.vocabulary));
    }
    return labels;
  }

  TokenRange range_;
  std::int64_t block_;
  Masking masking_;
  std::uint64_t seed_;
  nn::DataSpec spec_;
};

}  // namespace

Masking masking_of(double share, const tokenizers::SpecialTokens& special) {
  Masking out{.share = share, .mask = special.mask.value_or(0)};
  for (const auto& id :
       {special.unknown, special.padding, special.mask, special.cls, special.sep, special.begin, special.end})
    if (id) out.special.push_back(*id);
  return out;
}

std::shared_ptr<data::Dataset> token_blocks(TokenRange range, std::int64_t block, std::int64_t vocabulary,
                                            Masking masking, std::uint64_t seed) {
  return std::make_shared<TokenBlocks>(std::move(range), block, vocabulary, std::move(masking), seed);
}

}  // namespace trireme::datasets
