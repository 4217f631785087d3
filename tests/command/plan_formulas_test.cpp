// What trireme plan says of models on many GPUs, beside the formulas that are published for it.
#include <string>
#include <utility>
#include <vector>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

nlohmann::json planned(const SmallRun& run, const std::string& layout, const std::vector<std::string>& settings,
                       const std::string& machine = "h100-sxm") {
  const auto result = run_process(
      sets(settings, {TRIREME_COMMAND, "plan", run.config, "--layouts", layout, "--machine", machine, "--json"}));
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  return nlohmann::json::parse(result.out).at(0);
}

/// A model of text on GPUs, which no test could train.
struct TextPlan : SmallRun {
  TextPlan(const std::string& model, int block) {
    std::string lines;
    for (int i = 0; i < 4000; ++i) lines += "what a step costs is known before it runs\n";
    folder.write("texts/a.txt", lines);
    folder.write("run.toml", "[run]\ndir = \"" + dir() + "\"\n[model]\n" + model +
                                 "[data]\nname = \"text\"\ntokenizer = \"bytes\"\nblock = " + std::to_string(block) +
                                 "\npath = \"" + folder.path() +
                                 "/texts\"\n[train]\nepochs = 1\nglobal_batch = 32\nprecision = \"bf16\"\n");
  }
};

// Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020: of each parameter 2
// bytes of weights, 2 of gradients and 12 of optimizer state, of which stages 3, 2 and 1 leave each rank its part; the
// stages 1 and 2 send as much as an all-reduce does, stage 3 half as much again, here without the head: the last block
// stays gathered for its backward pass.
TEST(PlanFormulas, ShardedStateIsThatOfThePaper) {
  const TextPlan run("name = \"llama\"\nsize = \"1b\"\nvocab_size = 128256\ntied = false\n", 32);
  const double parameters = 1498482688, head = 128256 * 2048.;
  for (const int ranks : {8, 1024})
    for (const int zero : {0, 1, 2, 3}) {
      const auto row = planned(run, "dp=" + std::to_string(ranks) + (zero > 0 ? ",zero=" + std::to_string(zero) : ""),
                               {"train.global_batch=" + std::to_string(ranks)});
      const auto part = [&](int from) { return zero >= from ? ranks : 1.0; };
      const auto& memory = row.at("memory");
      SCOPED_TRACE(row.dump());
      const double state = (2 / part(3) + 2 / part(2) + 12 / part(1)) * parameters;
      EXPECT_NEAR(memory.at("weights").get<double>() + memory.at("gradients").get<double>() +
                      memory.at("optimizer").get<double>(),
                  state, 0.005 * state + 1e6);
      const double sent = 2 * (zero == 3 ? 3 * parameters - head : 2 * parameters) * (ranks - 1);
      EXPECT_NEAR(row.at("sent_bytes"), sent, 0.001 * sent);
    }
}

// Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, for a layer of GPT with s
// tokens, b samples, h features, a heads, on t ranks. What is more are the embedding, the logits, and what lives for a
// moment.
TEST(PlanFormulas, ActivationsAreThoseOfThePaper) {
  const TextPlan run("name = \"gpt2\"\nsize = \"medium\"\n", 1024);
  const double s = 1024, b = 4, h = 1024, a = 16, layers = 24, unit = layers * s * b * h;
  const struct {
    const char* layout;
    double formula, most = 1.15;  ///< beside it
    std::vector<std::string> settings{};
  } rows[] = {
      {"dp=8", unit * (34 + 5 * a * s / h)},
      {"dp=8", unit * 34, 1.15, {"model.attention_dropout=0"}},  // the fused attention keeps no probabilities
      {"dp=2,tp=4", unit * (10 + 24.0 / 4 + 5 * a * s / h / 4)},
      {"dp=2,tp=4,sp_mode=split_gather", unit * (34 + 5 * a * s / h) / 4},
      {"dp=1,tp=8,sp_mode=split_gather", unit * (34 + 5 * a * s / h) / 8},
      // The inputs of all layers, and one layer.
      {"dp=8,train.recompute=true", 2 * unit + s * b * h * (34 + 5 * a * s / h), 1.5},
  };
  for (auto row : rows) {
    row.settings.emplace_back("train.micro_batch=4");
    const double found = planned(run, row.layout, row.settings).at("memory").at("activations");
    EXPECT_GT(found, row.formula) << row.layout;
    EXPECT_LT(found, row.most * row.formula + 20 * s * b * h) << row.layout;
  }
}

// Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021: of the
// time of m microbatches in p stages (p - 1) / (m + p - 1) is idle, and with v parts of a stage a v-th of (p - 1) / m.
TEST(PlanFormulas, BubblesAreThoseOfThePaper) {
  const SmallRun run(kLeaves, "epochs = 1\nglobal_batch = 32\n");
  const auto machine = run.folder.write("machine.toml",
                                        "name = \"a\"\ndevice = \"cuda\"\nranks_per_host = 64\n[compute]\n"
                                        "tflops_fp32 = [1]\ncopy_gb_per_s = [1000]\n[inside]\ngb_per_s = 1e6\n");
  for (const auto& [p, v] : {std::pair{4, 1}, {8, 1}, {4, 2}})
    for (const int m : {8, 32}) {
      const auto schedule = v == 1 ? "" : ",schedule=interleaved,plugin.hybrid_parallel.num_model_chunks=2";
      const auto row = planned(run, "pp=" + std::to_string(p) + schedule,
                               {"train.micro_batch=" + std::to_string(32 / m), "model.num_layers=32",
                                "model.hidden_size=64", "model.intermediate_size=256"},
                               machine);
      const double idle = row.at("time").at("idle"), step = row.at("step_seconds");
      const double ideal = (p - 1.0) / v / (m + (p - 1.0) / v);
      EXPECT_NEAR(idle / step, ideal, 0.05) << row.at("name") << " " << m;
    }
}

}  // namespace
}  // namespace trireme::tests
