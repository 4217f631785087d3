#include "datasets/held_out.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/text.h"

namespace trireme::datasets {

HeldOut hold_out(std::int64_t samples, const LabelOf& label_of, const HeldOutOptions& options) {
  std::map<std::int64_t, std::vector<std::int64_t>> by_class;
  for (std::int64_t i = 0; i < samples; ++i) by_class[label_of(i)].push_back(i);
  const auto seed = random::mix(static_cast<std::uint64_t>(options.split_seed), random::hash("validation_share"));
  std::int64_t dealt = 0;  // samples of the classes before
  HeldOut out;
  for (const auto& [label, members] : by_class) {
    const auto count = static_cast<std::int64_t>(members.size());
    const auto wanted = std::llround(options.validation_share.value_or(0) * static_cast<double>(count));
    const auto held = std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, count - 1));
    const auto is_held = [&](std::int64_t i) {
      if (count < 2) return false;
      return options.folds ? (dealt + i) % *options.folds == options.fold : i < held;
    };
    const auto order = random::permutation(random::mix(seed, static_cast<std::uint64_t>(label)), count);
    for (std::int64_t i = 0; i < count; ++i)
      (is_held(i) ? out.validation : out.train)
          .push_back(members[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])]);
    if (count > 1) dealt += count;
  }
  for (auto* part : {&out.train, &out.validation}) std::sort(part->begin(), part->end());
  return out;
}

void refuse_held_out(const HeldOutOptions& options, const std::string& because, const data::OpenContext& context) {
  if (const auto* key = options.taken_by())
    config::fail(context.section, key, fmt::format("has no effect, because {}; remove one of the two", because));
}

HeldOut hold_out_as(const HeldOutOptions& options, std::int64_t samples, const LabelOf& label_of,
                    const HeldOutSource& source, std::string& digest) {
  const bool by_class = source.labels.dtype == at::kLong && source.labels.shape.empty();
  auto out = hold_out(samples, label_of, options);
  if (out.validation.empty() && options.folds && std::ssize(out.train) > 1)
    throw DataError(fmt::format("{}: fold {} of data.folds = {} has no {}; choose fewer folds", source.path,
                                options.fold, *options.folds, source.samples));
  if (out.validation.empty())
    throw DataError(fmt::format("{}: {} two {}, so that none can be for validation", source.path,
                                by_class ? "no class has" : "there are no", source.samples));
  digest += options.folds
                ? fmt::format(" without fold {} of {} by {}", options.fold, *options.folds, options.split_seed)
                : fmt::format(" without {} by {}", *options.validation_share, options.split_seed);
  if (!by_class) return out;
  std::vector<bool> found(source.classes.size());
  for (const auto i : out.validation) found[static_cast<std::size_t>(label_of(i))] = true;
  std::vector<std::string> without;
  for (std::size_t c = 0; c < found.size(); ++c)
    if (!found[c]) without.push_back(fmt::format("\"{}\"", source.classes[c]));
  if (!without.empty())
    source.log.note("data: the validation split has no sample of {}: data.{} needs two samples of a class",
                    text::first_few(without), options.taken_by());
  return out;
}

}  // namespace trireme::datasets
