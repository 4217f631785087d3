// Plugin: one way to run a model on several ranks. It is selected at run time and loaded from its own shared object.
//
// Call order: configure() and check() before a process group exists; axes() for the mesh; then boost() once.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fields.h"
#include "core/base/log.h"
#include "core/booster/handles.h"
#include "core/comm/mesh.h"
#include "core/config/run_config.h"
#include "core/nn/criterion.h"
#include "core/nn/policy.h"

namespace trireme {

/// Training options: everything that Booster and plugins read besides the model, the loss and the data. Each field is a
/// key of the TOML file (docs/config.md) with the same meaning and rules.
struct BoostOptions {
  config::TrainOptions train{};  ///< epochs and max_steps give the length of the lr schedule; the caller runs the loop
  config::OptimizerOptions optimizer{};
  config::LrScheduleOptions lr_schedule{};
  config::LoadingOptions loading{};
  /// Seeds all random draws: weights, sample order, dropout, augmentation, and LibTorch's generators on the CPU.
  std::uint64_t seed = 42;
};
/// @throws ConfigError that names the key and its rule.
void check_options(const BoostOptions& options);

/// A model whose parameters are declared but have no memory yet, except parameters that a user created.
struct ModelSource {
  std::shared_ptr<nn::Model> model{};
  std::string weights{};      ///< "" or a folder or file in Hugging Face's layout
  std::string head_prefix{};  ///< prefix of the parameters that are drawn if the weights lack them
  nn::Policy policy{};        ///< how tensor and sequence parallelism shard the layers; empty: they do not
  /// Whether the loss takes logits that are sharded over ranks (Task::takes_sharded_logits()).
  bool sharded_logits = false;
  /// The options that define the model and its loss ("model.hidden_size", "192"), if the caller gives them.
  std::map<std::string, std::string> options{};
  /// A sample's inputs, [1, ...] each, on the host, for plugins that profile the blocks. Null when there is no example.
  std::function<nn::NamedTensors()> example{};
};

/// The text of the key broadcast_buffers, which every built-in plugin has.
inline constexpr const char* kBroadcastBuffersText =
    "Give all ranks the first one's buffers (such as running statistics) at the end of each step. false: each rank "
    "keeps "
    "its own, and checkpoints hold the first one's.";

struct BoostResult {
  std::unique_ptr<BoostedModel> model;
  std::unique_ptr<BoostedOptimizer> optimizer;
  /// The cross-entropy of this model's logits in training, where ranks hold parts of them; null: they are complete.
  nn::CrossEntropy cross_entropy{};
};

class Plugin {
 public:
  virtual ~Plugin() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string summary() const = 0;  ///< one sentence for `trireme plugins`
  /// The fields of [plugin.NAME].
  [[nodiscard]] virtual const FieldTable& fields() const = 0;
  /// The current options, for printing through fields().
  [[nodiscard]] virtual const void* options() const = 0;
  /// Reads [plugin.NAME]; null means defaults. @throws ConfigError
  virtual void configure(const config::Table* section) = 0;
  /// Checks that involve the whole configuration and the world size, before a process group exists. @throws ConfigError
  virtual void check(const config::RunConfig& config, int world_size) const = 0;
  /// Checks that need the model, which has no memory yet; before a process group exists. @throws ConfigError
  virtual void check_model(const ModelSource& /*source*/, const config::RunConfig& /*config*/) const {}
  /// The mesh axes, for example {{"dp", 4}}.
  [[nodiscard]] virtual std::vector<std::pair<std::string, int>> axes(int world_size) const = 0;
  /// Axes over which the data is split (data parallelism): {"dp"}.
  [[nodiscard]] virtual std::vector<std::string> data_axes() const { return {"dp"}; }
  /// Axes over whose ranks the parts of a loss, and the counts of an evaluation, are summed: {"dp"}.
  [[nodiscard]] virtual std::vector<std::string> loss_axes() const { return data_axes(); }
  /// Whether each step makes the model's buffers equal on the ranks that have copies of them (core/booster/buffers.h).
  [[nodiscard]] virtual bool broadcasts_buffers() const { return true; }
  /// Whether this rank's part of the model reads the data's inputs. Other ranks only get their shapes.
  [[nodiscard]] virtual bool reads_inputs(const comm::Mesh& /*mesh*/) const { return true; }
  /// The microbatch size, given a rank's `share` of the global batch. `wanted`: the user's value, if set.
  /// @throws ConfigError
  [[nodiscard]] virtual std::int64_t micro_batch(std::optional<std::int64_t> wanted, std::int64_t share) const {
    return std::min(wanted.value_or(share), share);
  }
  /// Allocates the model, draws or loads its weights, and wraps model and optimizer. Collective over the mesh.
  virtual BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) = 0;
};

/// Copies abbreviated keys of [parallel] (tp, zero) into the plugin's section under their full names (tp_size,
/// zero_stage), where the plugin reads them. Call before configure(). @throws ConfigError when the two values differ or
/// the plugin has no such key.
void adopt_parallel_options(const Plugin& plugin, config::RunConfig& config);

/// Keys that the plugin's section shares with [train] can be set in either place and apply to both: values from the
/// plugin's section are set in config.train. Call after configure(). @throws ConfigError when the two values differ.
void adopt_train_options(const Plugin& plugin, config::RunConfig& config);
/// The same for a program that configures the plugin itself: returns `train` with the values of the plugin's options.
config::TrainOptions with_own_options(const Plugin& plugin, config::TrainOptions train);

}  // namespace trireme
