// What the Booster hands on to the loaders it makes.
#include "core/booster/booster.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

struct NoOptions {};

/// A plugin that lays nothing out: loaders need no model.
class Bare : public Plugin {
 public:
  std::string name() const override { return "bare"; }
  std::string summary() const override { return ""; }
  const FieldTable& fields() const override { return fields_; }
  const void* options() const override { return &options_; }
  void configure(const config::Table*) override {}
  void check(const config::RunConfig&, int) const override {}
  std::vector<std::pair<std::string, int>> axes(int world_size) const override { return {{"dp", world_size}}; }
  BoostResult boost(ModelSource, const BoostOptions&, comm::Mesh&, const Log&) override { return {}; }

 private:
  NoOptions options_;
  Fields<NoOptions> fields_{"plugin.bare", ""};
};

class Blank : public data::Dataset {
 public:
  std::int64_t size() const override { return 8; }
  std::optional<data::Sample> get(std::int64_t, std::int64_t, bool) override {
    return data::Sample{{at::empty({3, 2, 2})}, 0};
  }
};

TEST(Booster, EvaluationDecodesAsTrainingDoes) {
  const auto world = launch();
  Booster booster(*world, std::make_unique<Bare>(), {});
  const auto set = std::make_shared<Blank>();
  BoostInputs inputs;
  inputs.data = set;
  inputs.loader = {.global_batch = 4, .workers = 3, .prefetch = 5};
  const auto run = booster.boost(std::move(inputs));
  const auto options = booster.evaluation_loader(set, 2)->options();
  EXPECT_EQ(options.workers, 3);
  EXPECT_EQ(options.prefetch, 5);
  EXPECT_TRUE(options.evaluation);
}

}  // namespace
}  // namespace trireme
