// The names that other tools have for our keys, for messages about unknown keys.
#pragma once

#include <string_view>
#include <utility>

namespace trireme::config {

/// What users of other tools call a key, and its name here.
inline constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"batch_size", "train.global_batch, or train.micro_batch for one forward pass of a rank"},
    {"train_batch_size", "train.global_batch"},
    {"per_device_train_batch_size", "train.micro_batch"},
    {"gradient_accumulation_steps",
     "train.micro_batch: a rank's share of train.global_batch is split into microbatches of this size"},
    {"learning_rate", "optimizer.lr"},
    {"num_epochs", "train.epochs"},
    {"num_train_epochs", "train.epochs"},
    {"num_workers", "data.workers"},
    {"max_grad_norm", "train.max_norm"},
    {"grad_clip", "train.max_norm"},
    {"activation_checkpointing", "train.recompute"},
    {"gradient_checkpointing", "train.recompute"},
    {"selective_recompute", "train.recompute_modules"},
    {"cpu_checkpointing", "train.offload_activations"},
    {"mixed_precision", "train.precision"},
    {"output_dir", "run.dir"},
    {"tensor_parallel", "parallel.tp"},
    {"pipeline_parallel", "parallel.pp"},
    {"sequence_parallel", "parallel.sp"},
    {"data_parallel", "parallel.dp"},
    {"tensor_parallel_size", "parallel.tp"},
    {"pipeline_parallel_size", "parallel.pp"},
    {"sequence_parallel_size", "parallel.sp"},
    {"data_parallel_size", "parallel.dp"}};

/// The key to use in place of another tool's; "" for an unknown name.
constexpr std::string_view equivalent_key(std::string_view name) {
  for (const auto& [other, equivalent] : kOtherNames)
    if (other == name) return equivalent;
  return "";
}

}  // namespace trireme::config
