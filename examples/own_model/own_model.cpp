// Trains the Reader (reader.h) in the parallel layout from the command line, alone or under mpirun, srun, torchrun:
//
//   own_model [SECTION.KEY=VALUE]...
//   mpirun --allow-run-as-root --oversubscribe -n 4 own_model parallel.tp=2 parallel.pp=2
//
// The losses are the same in each layout.
#include <ATen/ops/tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reader.h"
#include "trireme.h"

namespace nn = trireme::nn;
namespace data = trireme::data;
namespace config = trireme::config;

// Lines that contain the letter 0 once; the letter after it is the class. Line i is always the same.
class Lines : public data::Dataset {
 public:
  std::int64_t size() const override { return 960; }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t, bool) override {
    const auto draw = [&](std::int64_t number, std::int64_t below) {
      const auto key = trireme::random::mix(trireme::random::hash("lines"), static_cast<std::uint64_t>(index));
      return static_cast<std::int64_t>(trireme::random::uniform(key, static_cast<std::uint64_t>(number)) *
                                       static_cast<double>(below));
    };
    std::vector<std::int64_t> letters;
    for (std::int64_t i = 0; i < reader::kLength; ++i) letters.push_back(1 + draw(i, reader::kLetters - 1));
    const auto label = draw(reader::kLength, reader::kClasses);
    const auto mark = static_cast<std::size_t>(draw(reader::kLength + 1, reader::kLength - 1));
    letters[mark] = 0;
    letters[mark + 1] = 1 + label;
    return data::Sample{{{"letters", at::tensor(letters, at::kLong)}}, data::class_label(label)};
  }
};

// Defaults for the command line. The program has its own model, data and task.
constexpr const char* kDefaults = R"(
[train]
epochs = 20
global_batch = 32
precision = "fp64"
max_norm = 1.0
[optimizer]
lr = 3e-3
[parallel]
plugin = "hybrid_parallel"
)";

struct Run {
  trireme::train::RunConfig config;
  std::unique_ptr<trireme::Plugin> plugin;
  trireme::ModelSource source;
};

// The keys that only `trireme train` reads would have no effect here.
void refuse_unused_keys(const config::Table& root) {
  const std::map<std::string, trireme::FieldTable> used{{"run", {}},
                                                        {"data", {}},
                                                        {"train", trireme::train_fields()},
                                                        {"optimizer", trireme::optim::optimizer_fields()},
                                                        {"schedule", trireme::optim::lr_schedule_fields()}};
  for (const auto& [name, fields] : used)
    if (const auto* section = root.table(name))
      for (const auto& [key, entry] : section->entries)
        if (fields.find(key) == nullptr) config::fail(section, key, "own_model does not use this key");
}

// Reports all errors that can be found before any rank waits for another.
Run prepare(int argc, char** argv) {
  auto root = config::parse_text(kDefaults, "own_model");
  for (int i = 1; i < argc; ++i) config::apply_override(root, argv[i]);
  Run run{.config = trireme::train::from_table(std::move(root), {}), .plugin = nullptr, .source = {}};
  refuse_unused_keys(run.config.root);
  run.plugin = trireme::train::configured_plugin(run.config);
  run.source.model = std::make_shared<reader::Reader>(config::read(&run.config.model_keys, reader::fields()));
  run.source.policy = reader::policy();
  const auto settings = trireme::train::settings_of(run.config, *run.plugin, trireme::detect_launch().size);
  run.plugin->check(settings);
  run.plugin->check_model(run.source, settings);
  return run;
}

int train(Run given, trireme::comm::World& world) {
  const auto& train = given.config.train;
  trireme::Booster booster(
      world, std::move(given.plugin),
      {.train = train, .optimizer = given.config.optimizer, .lr_schedule = given.config.schedule, .seed = 42});
  const auto lines = std::make_shared<Lines>();
  trireme::BoostInputs inputs;
  inputs.source = std::move(given.source);
  inputs.task = trireme::tasks::classification();
  inputs.data = lines;
  auto run = booster.boost(std::move(inputs));
  booster.log().note("{}", booster.mesh().formula());
  for (const auto& note : run.model->report().notes) booster.log().note("{}", note);

  for (const auto epoch : run.epochs())
    for (const auto& batch : epoch) {
      const auto loss = run.train_step(batch).loss;
      if (run.step <= 5 || run.step % 100 == 0)
        booster.log().note("step {:3}  loss {:.15f}", run.step, loss.item<double>());
    }
  const auto score = trireme::train::evaluate(run, *run.evaluation_loader(lines, 32));
  booster.log().note("accuracy {:.1f} %, loss {:.15f}", 100 * score.value("accuracy"), score.loss);
  return 0;
}

int main(int argc, char** argv) {
  return trireme::run_program("own_model", [&] {
    auto run = prepare(argc, argv);
    return trireme::run_program("own_model", [&](trireme::comm::World& world) { return train(std::move(run), world); });
  });
}
