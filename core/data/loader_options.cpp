#include "core/data/loader_options.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/error.h"
#include "core/data/sampler.h"

namespace trireme::data {

const Fields<LoadingOptions>& loading_fields() {
  using O = LoadingOptions;
  static const auto table =
      Fields<O>("data", "")
          .add("workers", &O::workers,
               "Threads per rank that read samples. Unset: an equal share of the machine's cores, without those on "
               "which a CPU rank computes, between 1 and 16.",
               {.min = 1, .max = 1024})
          .add("prefetch", &O::prefetch, "Number of steps whose samples are loaded ahead.", {.min = 1, .max = 1024})
          .add("on_bad_sample", &O::on_bad_sample,
               "What happens when a sample cannot be read, such as a file that cannot be decoded: error ends the run; "
               "skip leaves the sample out and counts it. With skip, one of the ranks that need the same samples "
               "(tensor, sequence and pipeline parallelism) reads them for all.",
               {.choices = {"error", "skip"}})
          .add("shard_data", &O::shard_data,
               "Each sample is read, and kept in memory, by one rank only, which sends it to those that need it: the "
               "whole set is in memory once across all ranks. Needs samples of one size.")
          .add(
              "dispatch", &O::dispatch,
              "Rank 0 alone reads the samples and sends each rank its part, for data that only its host can read fast. "
              "Needs samples of one size.")
          .rule([](const O& o, const CheckedSection& section) {
            if (o.shard_data && o.dispatch)
              section.fail("dispatch",
                           "makes rank 0 read all samples, but shard_data = true divides them over all "
                           "ranks; remove one of the two");
          });
  return table;
}

void check_shares(std::int64_t global_batch, int ranks) {
  if (ranks > global_batch)
    throw ConfigError(
        fmt::format("train.global_batch: a global batch of {} cannot be split over {} data-parallel ranks; use at "
                    "least {}, or at most {} ranks",
                    global_batch, ranks, ranks, global_batch));
}

SamplerOptions sampler_options(const Dataset& dataset, const LoaderOptions& o) {
  return {dataset.size(), o.global_batch, o.micro_batch, o.dp_rank, o.dp_size, o.drop_last};
}

void check_rows(Dataset& dataset, const LoadingOptions& options) {
  if (dataset.rows() != nullptr) return;
  for (const auto& [key, on] : {std::pair{"shard_data", options.shard_data}, {"dispatch", options.dispatch}})
    if (on)
      throw ConfigError(
          fmt::format("data.{}: this data set has no rows (Dataset::rows()), in which one rank could send "
                      "samples to another; remove the key",
                      key));
}

void check_loader(Dataset& dataset, const LoaderOptions& o) {
  TRIREME_REQUIRE(o.global_batch > 0 && o.micro_batch > 0 && 0 <= o.dp_rank && o.dp_rank < o.dp_size,
                  "invalid loader options: global batch {}, micro batch {}, rank {} of {}", o.global_batch,
                  o.micro_batch, o.dp_rank, o.dp_size);
  TRIREME_REQUIRE(!o.evaluation || !(o.shuffle || o.augment || o.drop_last),
                  "an evaluation loader cannot shuffle, augment or drop samples");
  check_shares(o.global_batch, o.dp_size);
  if (o.exchange && dataset.rows() == nullptr)
    throw ConfigError(
        "data.on_bad_sample: with \"skip\" and tensor, sequence or pipeline parallelism, one rank reads the samples "
        "for "
        "others, but this data set has no rows (Dataset::rows()) to send; choose \"error\"");
  if (dataset.size() == 0) throw DataError("the data set holds no samples");
  if (o.drop_last && dataset.size() < o.global_batch)
    throw DataError(
        fmt::format("{} samples do not fill one global batch of {}, and train.drop_last = true drops incomplete "
                    "batches; set it to false, or train.global_batch to at most {}",
                    dataset.size(), o.global_batch, dataset.size()));
}

std::int64_t steps_per_epoch(Dataset& dataset, const LoaderOptions& options) {
  check_loader(dataset, options);
  return Sampler(sampler_options(dataset, options)).steps_per_epoch();
}

}  // namespace trireme::data
