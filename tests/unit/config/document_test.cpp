// The texts that users read of the field tables: --explain and the page docs/config.md.
#include "core/config/document.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/setup/run_config.h"
#include "tests/unit/config/config_test.h"

namespace trireme::config {
namespace {

std::vector<const FieldTable*> all_tables() {
  static const train::Kinds kinds;
  auto tables = train::section_tables();
  const auto own = train::own_tables(kinds);
  tables.insert(tables.end(), own.begin(), own.end());
  return tables;
}

TEST(Explain, ShowsAnOptionASectionOrTheNearestName) {
  const auto tables = all_tables();
  EXPECT_EQ(explain(tables, "optimizer.betas"),
            "optimizer.betas\n  Decay rates of the running averages of the gradient and of its square.\n"
            "  value    a list of numbers with 2 elements, each at least 0 and below 1\n"
            "  default  [0.9, 0.999]\n  applies  only with name = hybrid_adam or lamb\n\n"
            "optimizer.betas\n  The momentum's part in the update, and the decay rate of the momentum.\n"
            "  value    a list of numbers with 2 elements, each at least 0 and below 1\n"
            "  default  [0.9, 0.99]\n  applies  only with name = lion\n");
  EXPECT_EQ(explain(tables, "betas"), explain(tables, "optimizer.betas"));
  FieldTable nested{"plugin.fast", "A plugin.", {}}, more{"model", "A model's own.", {}};
  nested.fields.push_back(*all_tables().front()->find("seed"));
  auto all = all_tables();
  all.insert(all.end(), {&nested, &more});
  EXPECT_EQ(explain(all, "fast.seed"), explain(all, "plugin.fast.seed"));
  EXPECT_EQ(explain(all, "fast"), explain(all, "plugin.fast"));
  const auto section = explain(tables, "parallel");
  EXPECT_EQ(section.rfind("[parallel]  How the work is distributed over the ranks: ranks = dp_outer x dp x pp", 0), 0U)
      << section;
  EXPECT_NE(section.find("\n\nparallel.plugin\n"), std::string::npos) << section;
  EXPECT_EQ(tests::message_of([&] { explain(tables, "train.micro_bacth"); }),
            "--explain train.micro_bacth: no such option; did you mean \"train.micro_batch\"?");
  EXPECT_EQ(
      tests::message_of([&] { explain(all, "zzzzzz"); }),
      "--explain zzzzzz: no such option (sections: run, model, lora, data, train, optimizer, schedule, optimize, comm, "
      "parallel, plugin.fast)")
      << "each section is listed once";
}

// Every row has a text, and its rules refer to keys that exist.
TEST(Tables, RowsAreComplete) {
  for (const auto* table : all_tables()) {
    EXPECT_FALSE(table->text.empty()) << table->section;
    for (const auto& field : table->fields) {
      EXPECT_GT(field.text.size(), 8U) << table->section << "." << field.key;
      EXPECT_EQ(field.text.back(), '.') << table->section << "." << field.key;
      if (field.rules.only) {
        EXPECT_NE(table->find(field.rules.only->key), nullptr) << table->section << "." << field.key;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::config
