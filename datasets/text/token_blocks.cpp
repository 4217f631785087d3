#include "datasets/text/token_blocks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "core/data/rows.h"
#include "core/nn/layers/index_checks.h"
#include "datasets/text/packing.h"

namespace trireme::datasets {
namespace {

constexpr double kMasked = 0.8, kReplaced = 0.1;

class TokenBlocks : public data::RowDataset {
 public:
  TokenBlocks(TokenRange range, BlockOptions options)
      : range_(std::move(range)), options_(std::move(options)), block_(options_.block) {
    if (size() == 0)
      throw DataError(fmt::format("{}: {}{} are fewer than a block of {}; {}lower data.block, or add text",
                                  range_.source, text::quantity(range_.end - range_.begin, "token"),
                                  range_.is_cut_off ? " for the validation split" : "", block_,
                                  range_.is_cut_off ? "raise data.validation_share, " : ""));
    spec_ = {.inputs = {{"input_ids", at::kLong, {block_}}},
             .targets = {{nn::kLabels, at::kLong, {block_}}},
             .vocabulary = options_.vocabulary,
             .ignored_labels = options_.masking.share > 0 || options_.document_mask,
             .labels_are_inputs = options_.masking.share == 0};
    if (options_.document_mask)
      for (auto& input : document_inputs(block_)) spec_.inputs.push_back(std::move(input));
  }
  [[nodiscard]] std::int64_t size() const override { return (range_.end - range_.begin) / block_; }
  [[nodiscard]] nn::DataSpec spec() override { return spec_; }
  [[nodiscard]] data::RowSpec row_spec(const std::vector<std::string>& inputs, bool /*augment*/) const override {
    return data::row_spec_of(spec_, inputs);
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
    auto labels = options_.masking.share > 0 ? mask(ids, index, epoch, augment) : ids;
    data::Sample sample;
    if (std::find(inputs.begin(), inputs.end(), spec_.inputs.front().name) != inputs.end())
      sample.inputs.set(spec_.inputs.front().name, ids);
    if (options_.document_mask) {
      if (options_.masking.share == 0) labels = ids.clone();
      DocumentInputs places(block_);
      const auto ends = document_ends(first);
      for (std::size_t i = 0; i < ends.size(); ++i) {
        const auto begin = i == 0 ? 0 : ends[i - 1];
        places.add(ends[i] - begin);
        if (options_.masking.share == 0) labels[begin] = nn::kNoLabel;
      }
      places.set_in(sample.inputs, inputs);
    }
    sample.targets.set(nn::kLabels, std::move(labels));
    return sample;
  }
  [[nodiscard]] data::Sample transform_batch(data::Sample batch, bool /*combine*/) const override { return batch; }

 private:
  /// Where the documents of the block that begins at token `first` end in it, ascending; the last one at the block's
  /// end.
  [[nodiscard]] std::vector<std::int64_t> document_ends(std::int64_t first) const {
    const auto& tokens = *range_.tokens;
    const auto documents = std::views::iota(std::int64_t{0}, tokens.documents());
    const auto next =
        std::ranges::partition_point(documents, [&](auto i) { return tokens.document_begin(i) <= first; });
    std::vector<std::int64_t> ends;
    for (auto i = next - documents.begin(); i < tokens.documents() && tokens.document_begin(i) < first + block_; ++i)
      if (const auto end = tokens.document_begin(i) - first; ends.empty() || ends.back() < end) ends.push_back(end);
    ends.push_back(block_);
    return ends;
  }
  /// Masks the ids in place and returns the labels.
  [[nodiscard]] at::Tensor mask(const at::Tensor& ids, std::int64_t index, std::int64_t epoch, bool augment) const {
    auto labels = at::full_like(ids, nn::kNoLabel);
    auto* id = ids.mutable_data_ptr<std::int64_t>();
    auto* label = labels.mutable_data_ptr<std::int64_t>();
    const auto purpose = random::hash(augment ? "masking" : "masking of an evaluation");
    const auto key = random::mix(options_.seed, purpose, augment ? epoch : 0, index);
    for (std::int64_t t = 0; t < block_; ++t) {
      const auto drawn = random::philox(key, 0, static_cast<std::uint64_t>(t));
      if (random::to_unit(drawn.v[0]) >= options_.masking.share ||
          std::find(options_.masking.special.begin(), options_.masking.special.end(), id[t]) !=
              options_.masking.special.end())
        continue;
      label[t] = id[t];
      const auto what = random::to_unit(drawn.v[1]);
      if (what < kMasked)
        id[t] = options_.masking.mask;
      else if (what < kMasked + kReplaced)
        id[t] = static_cast<std::int64_t>(random::to_unit(drawn.v[2]) * static_cast<double>(spec_.vocabulary));
    }
    return labels;
  }

  TokenRange range_;
  BlockOptions options_;
  std::int64_t block_;
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

std::shared_ptr<data::Dataset> token_blocks(TokenRange range, BlockOptions options) {
  return std::make_shared<TokenBlocks>(std::move(range), std::move(options));
}

}  // namespace trireme::datasets
