// Plugin: one way to run a model on many ranks. Chosen at run time by name or path, loaded from its own shared object.
//
// Order of calls: configure() and check() before any process group; axes() for the mesh; then boost() once.
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

/// How to train: what Booster and plugins read beside the model, the loss and the data. Each field is a key of the TOML
/// file (docs/config.md), does what it says there, and keeps to the same rules.
struct BoostOptions {
  config::TrainOptions train{};  ///< epochs and max_steps are the schedule's length: the loop is the caller's
  config::OptimizerOptions optimizer{};
  config::LrScheduleOptions lr_schedule{};
  config::LoadingOptions loading{};
  /// All random draws: weights, order of samples, dropout, augmentation, and LibTorch's generators on the CPU.
  std::uint64_t seed = 42;
};
/// @throws ConfigError that names the key and its rule.
void check_options(const BoostOptions& options);

/// A model that has its declarations but, except for parameters a user made, no memory yet.
struct ModelSource {
  std::shared_ptr<nn::Model> model{};
  std::string weights{};      ///< "" or a folder or file in Hugging Face layout
  std::string head_prefix{};  ///< parameters that may be drawn anew when the weights lack them
  std::string kind{};         ///< of a model of ours ("vit"), for plugins that know its layers
  nn::Policy policy{};        ///< how to cut a user's own model, or one of ours in another way
  /// The loss, where the criterion is this one of the model's first output and the labels, and nothing else looks at
  /// the outputs in training; null: it is another, and gets whole outputs.
  std::shared_ptr<nn::CrossEntropy> loss{};
  /// The options that make it what it is ("hidden_size", "192"), as far as its caller tells them.
  std::map<std::string, std::string> options{};
  /// A sample's inputs, [1, ...] each, on the host: for plugins that must see what blocks do. Null: nobody has them.
  std::function<nn::Tensors()> example{};
};

struct BoostResult {
  std::unique_ptr<BoostedModel> model;
  std::unique_ptr<BoostedOptimizer> optimizer;
};

class Plugin {
 public:
  virtual ~Plugin() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string summary() const = 0;  ///< one sentence for `trireme plugins`
  /// Rows of [plugin.NAME].
  [[nodiscard]] virtual const FieldTable& fields() const = 0;
  /// The options as they stand, for printing through fields().
  [[nodiscard]] virtual const void* options() const = 0;
  /// Reads [plugin.NAME]; null: defaults. @throws ConfigError
  virtual void configure(const config::Table* section) = 0;
  /// Rules that span the file and the world, before any process group. @throws ConfigError
  virtual void check(const config::RunConfig& config, int world_size) const = 0;
  /// Rules that need the model, which has no memory yet; before any process group. @throws ConfigError
  virtual void check_model(const ModelSource& /*source*/, const config::RunConfig& /*config*/) const {}
  /// The layout over the ranks, e.g. {{"dp", 4}}.
  [[nodiscard]] virtual std::vector<std::pair<std::string, int>> axes(int world_size) const = 0;
  /// Axes over which the data is split (data parallelism): {"dp"}.
  [[nodiscard]] virtual std::vector<std::string> data_axes() const { return {"dp"}; }
  /// Axes over whose ranks the parts of a loss add up, and the counts of an evaluation: {"dp"}.
  [[nodiscard]] virtual std::vector<std::string> loss_axes() const { return data_axes(); }
  /// Whether this rank's model begins at the data's inputs. One that does not gets their shapes alone.
  [[nodiscard]] virtual bool reads_inputs(const comm::Mesh& /*mesh*/) const { return true; }
  /// Samples of a microbatch, of a rank's `share` of a global batch. `wanted`: by the user, if he said so.
  /// @throws ConfigError
  [[nodiscard]] virtual std::int64_t micro_batch(std::optional<std::int64_t> wanted, std::int64_t share) const {
    return std::min(wanted.value_or(share), share);
  }
  /// Collective over the mesh: gives the model its memory, draws or loads its weights, and wraps both.
  virtual BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) = 0;
};

/// What [parallel] says in short (tp, zero) is written into the plugin's section in long (tp_size, zero_stage), where
/// the plugin reads it. To be called before configure(). @throws ConfigError when both say differently, or the plugin
/// has no such key.
void adopt_parallel_options(const Plugin& plugin, config::RunConfig& config);

/// Keys of the plugin's section that [train] has too may be written in either, and count for both: what the section
/// says is set in config.train. To be called after configure(). @throws ConfigError when both say differently.
void adopt_train_options(const Plugin& plugin, config::RunConfig& config);
/// The same for a program that configures the plugin itself: `train` with what the plugin's options say.
config::TrainOptions with_own_options(const Plugin& plugin, config::TrainOptions train);

}  // namespace trireme
