// The ladder: contract C1 over all axes at once. Each row is a layout, in the syntax of `trireme verify --layouts`, and
// how it is trained; it runs in the program with its number of ranks. Every gradient of every step, every weight, norm
// and loss equals that of one process without a plugin, in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

struct Rung {
  const char* layout;  ///< dp, pp, sp, tp, zero, schedule, sp_mode, chunks, words of kKeys; by default 1, 0 or none
  const char* how;     ///< see train_as()
};

/// Words of a layout that set keys of the plugin.
const std::map<std::string, std::string> kKeys{{"optimized",
                                                "enable_all_optimization = true\nenable_fused_normalization = true\n"
                                                "enable_jit_fused = true"},
                                               {"norm", "enable_fused_normalization = true"},
                                               {"jit", "enable_jit_fused = true"},
                                               {"scores", "enable_flash_attention = false"},
                                               {"waits", "enable_sequence_overlap = false"},
                                               {"half_again", "recompute_ratio = 0.5"},
                                               {"some_again", "recompute_layers_per_stage = [1, 2]"}};

// 10 tokens, 3 heads and 5 classes by default; 11 samples in batches of 8, so that the second step is ragged.
constexpr Rung kLadder[] = {
    // One axis.
    {"dp=1", ""},
    {"dp=2", "clip"},
    {"dp=3", "sgd micro=1"},
    {"dp=4,zero=1", "clip recompute"},
    {"dp=3,zero=2", "sgd micro=2 clip"},
    {"dp=8,zero=2", "micro=1 dropout"},
    {"tp=2", "dropout clip"},
    {"tp=3", "sgd recompute micro=3"},
    {"tp=4", "heads=5 dropout"},
    {"tp=8", "heads=8 clip"},
    {"tp=2", "tied clip"},
    {"tp=3", "words sgd"},
    {"tp=8", "heads=8 tied micro=2"},
    {"pp=2", "micro=2 clip"},
    {"pp=3", "sgd micro=1 dropout"},
    {"pp=4", "micro=1 recompute layers=5"},
    {"pp=8", "micro=1 layers=6 clip"},
    // Images of 12 x 20 pixels: 16 tokens.
    {"dp=2,zero=1", "width=20 micro=2 clip"},
    {"tp=2", "width=20 dropout"},
    {"tp=2,sp_mode=split_gather", "width=20 dropout"},
    {"sp=2,sp_mode=all_to_all", "width=20 clip"},
    {"sp=3,sp_mode=ring_attn", "width=20 sgd micro=2"},
    {"pp=2", "width=20 micro=2 recompute"},
    {"pp=2,tp=2,schedule=zb_h1", "width=20 micro=1"},
    // Every schedule.
    {"pp=2,schedule=gpipe", "micro=2"},
    {"pp=4,schedule=gpipe", "sgd micro=3 clip"},
    {"pp=3,schedule=gpipe", "micro=1 recompute dropout"},
    {"pp=2,schedule=interleaved,chunks=2", "micro=1 clip"},
    {"pp=2,schedule=interleaved,chunks=3", "sgd micro=2 layers=5"},
    {"pp=3,schedule=interleaved,chunks=2", "micro=3 dropout layers=7"},
    {"pp=4,schedule=interleaved,chunks=2", "micro=1 layers=8 recompute"},
    {"pp=2,schedule=zb_h1", "micro=1 clip"},
    {"pp=3,schedule=zb_h1", "sgd micro=2 recompute"},
    {"pp=4,schedule=zb_h1", "micro=1 dropout layers=3"},
    {"pp=8,schedule=zb_h1", "micro=2 layers=7"},
    {"pp=2,schedule=zbv", "micro=1 clip"},
    {"pp=3,schedule=zbv", "sgd micro=1 layers=5"},
    {"pp=4,schedule=zbv", "micro=3 dropout recompute layers=6"},
    {"pp=2,schedule=1f1b", "micro=8 twice"},
    {"pp=3,schedule=zb_h1", "micro=2 twice clip"},
    {"pp=2,schedule=zbv", "micro=4 twice recompute"},
    {"pp=2,schedule=zb_h1", "micro=2 tied"},
    {"pp=2,schedule=interleaved,chunks=2", "micro=2 rare sgd"},
    // A term of the loss that the second block adds.
    {"dp=1", "balance"},
    {"dp=3,zero=2", "micro=1 balance recompute clip"},
    {"dp=2,zero=3", "sgd micro=1 balance"},
    {"tp=2", "balance clip"},
    {"tp=2,sp_mode=split_gather", "balance dropout"},
    {"tp=3,sp_mode=ring", "micro=3 balance recompute"},
    {"sp=2,sp_mode=all_to_all", "micro=2 balance"},
    {"sp=3,sp_mode=ring_attn", "sgd balance"},
    {"pp=2", "micro=2 balance"},
    {"pp=2,schedule=zb_h1", "micro=1 balance clip"},
    {"pp=3,schedule=zbv", "sgd micro=1 balance recompute layers=5"},
    {"dp=2,pp=2,zero=3,schedule=zb_h1", "micro=1 balance"},
    {"dp=2,pp=2,tp=2,zero=2,sp_mode=split_gather", "micro=2 balance"},
    // Every mode of sequence parallelism.
    {"tp=2,sp_mode=split_gather", "dropout clip"},
    {"tp=3,sp_mode=split_gather", "sgd micro=3 recompute"},
    {"tp=4,sp_mode=split_gather", "heads=4 dropout micro=2"},
    {"tp=2,sp_mode=ring", "clip recompute"},
    {"tp=3,sp_mode=ring", "sgd dropout"},
    {"tp=4,sp_mode=ring", "heads=6 micro=1"},
    {"sp=2,sp_mode=all_to_all", "dropout clip"},
    {"sp=3,sp_mode=all_to_all", "sgd micro=2"},
    {"sp=4,sp_mode=all_to_all", "heads=6 recompute"},
    {"sp=2,sp_mode=ring_attn", "dropout clip"},
    {"sp=3,sp_mode=ring_attn", "sgd micro=1 dropout"},
    {"sp=4,sp_mode=ring_attn", "recompute"},
    {"tp=2,sp_mode=split_gather", "tied dropout"},
    {"sp=3,sp_mode=all_to_all", "words"},
    {"sp=8,sp_mode=ring_attn", "dropout"},
    // Pairs.
    {"dp=2,tp=2", "micro=1 clip"},
    {"dp=2,tp=2,zero=1", "sgd dropout"},
    {"dp=2,tp=2,zero=2", "micro=2 recompute clip"},
    {"dp=2,tp=3,zero=2", "sgd clip"},
    {"dp=4,tp=2,zero=1", "micro=1"},
    {"dp=2,pp=2", "micro=1 clip"},
    {"dp=2,pp=2,zero=1", "sgd micro=2 dropout"},
    {"dp=2,pp=2,zero=2", "micro=1 recompute clip"},
    {"dp=2,pp=2,zero=2,schedule=zb_h1", "micro=2 clip"},
    {"dp=2,pp=2,zero=1,schedule=zbv", "sgd micro=1"},
    {"dp=2,pp=2,zero=2,schedule=interleaved,chunks=2", "micro=1 dropout"},
    {"dp=3,pp=2,zero=1", "micro=1 clip"},
    {"dp=2,pp=3,zero=2,schedule=zb_h1", "sgd micro=2"},
    {"dp=2,pp=4,zero=1,schedule=interleaved,chunks=2", "micro=1 layers=8"},
    {"pp=2,tp=2", "micro=2 clip"},
    {"pp=2,tp=2,schedule=zb_h1", "sgd micro=1 dropout"},
    {"pp=2,tp=2,schedule=zbv", "micro=2 recompute"},
    {"pp=2,tp=2,schedule=gpipe", "micro=2 twice"},
    {"pp=2,tp=2", "micro=2 tied clip"},
    {"pp=2,tp=3", "micro=3 dropout"},
    {"pp=4,tp=2,schedule=interleaved,chunks=2", "micro=1 layers=7 clip"},
    {"pp=2,tp=4,schedule=zb_h1", "heads=4 micro=2"},
    {"dp=2,tp=2,zero=1,sp_mode=split_gather", "micro=2 clip"},
    {"dp=2,tp=2,zero=2,sp_mode=ring", "sgd dropout"},
    {"dp=2,sp=2,zero=1,sp_mode=all_to_all", "micro=1 clip"},
    {"dp=2,sp=2,zero=2,sp_mode=ring_attn", "dropout recompute"},
    {"sp=2,tp=2,sp_mode=all_to_all", "heads=6 clip"},
    {"sp=2,tp=2,sp_mode=ring_attn", "sgd micro=2 dropout"},
    {"pp=2,tp=2,sp_mode=split_gather", "micro=2 dropout clip"},
    {"pp=2,tp=2,sp_mode=ring,schedule=zb_h1", "micro=1 sgd"},
    {"pp=2,tp=2,sp_mode=split_gather,schedule=zbv", "micro=2 recompute"},
    {"pp=2,sp=2,sp_mode=all_to_all", "micro=2 clip"},
    {"pp=2,sp=2,sp_mode=ring_attn,schedule=zb_h1", "micro=1 dropout"},
    {"pp=2,sp=3,sp_mode=ring_attn", "sgd micro=2"},
    // Three axes, with each stage of ZeRO.
    {"dp=2,pp=2,tp=2", "micro=2 clip"},
    {"dp=2,pp=2,tp=2,zero=1", "sgd micro=1 dropout"},
    {"dp=2,pp=2,tp=2,zero=2", "micro=2 recompute clip"},
    {"dp=2,pp=2,tp=2,zero=2", "micro=2 tied clip"},
    {"dp=2,pp=2,tp=2,zero=1,schedule=zb_h1", "micro=1 clip"},
    {"dp=2,pp=2,tp=2,zero=2,schedule=zbv", "sgd micro=2"},
    {"dp=2,pp=2,tp=2,zero=1,schedule=interleaved,chunks=2", "micro=1 dropout recompute"},
    {"dp=2,pp=2,tp=2,zero=2,sp_mode=split_gather", "micro=2 dropout"},
    {"dp=2,pp=2,tp=2,zero=1,sp_mode=ring,schedule=zb_h1", "sgd micro=1 clip"},
    {"dp=2,sp=2,tp=2,zero=1,sp_mode=ring_attn", "micro=2 clip"},
    {"dp=2,pp=2,sp=2,zero=2,sp_mode=all_to_all", "micro=1 dropout"},
    {"pp=2,sp=2,tp=2,sp_mode=ring_attn", "sgd micro=2 recompute"},
    // Sharded weights (stage 3).
    {"dp=1,zero=3", "clip"},
    {"dp=2,zero=3", "sgd micro=1 clip ahead"},
    {"dp=3,zero=3", "micro=2 dropout recompute"},
    {"dp=8,zero=3", "micro=1 offload late"},
    {"dp=2,tp=2,zero=3", "micro=1 clip"},
    {"dp=2,tp=3,zero=3", "sgd dropout recompute ahead"},
    {"dp=2,tp=4,zero=3", "heads=5 micro=2 offload"},
    {"dp=4,tp=2,zero=3", "micro=1 twice ahead"},
    {"dp=2,tp=2,zero=3,sp_mode=split_gather", "micro=2 clip dropout"},
    {"dp=2,tp=2,zero=3,sp_mode=ring", "sgd recompute ahead"},
    {"sp=2,zero=3,sp_mode=all_to_all", "dropout clip"},
    {"dp=2,sp=2,zero=3,sp_mode=all_to_all", "micro=1 recompute"},
    {"sp=3,zero=3,sp_mode=ring_attn", "sgd micro=2 ahead"},
    {"dp=2,sp=2,zero=3,sp_mode=ring_attn", "micro=1 dropout offload"},
    {"dp=2,sp=2,tp=2,zero=3,sp_mode=ring_attn", "micro=2 clip"},
    {"dp=2,pp=2,zero=3", "micro=1 clip"},
    {"dp=2,pp=2,zero=3", "micro=1 dropout recompute layers=5 ahead"},
    {"dp=2,pp=2,zero=3,schedule=gpipe", "sgd micro=2 late"},
    {"dp=2,pp=2,zero=3,schedule=interleaved,chunks=2", "micro=1 clip dropout"},
    {"dp=2,pp=2,zero=3,schedule=zb_h1", "micro=1 clip"},
    {"dp=2,pp=2,zero=3,schedule=zb_h1", "sgd micro=2 recompute layers=5 ahead"},
    {"dp=2,pp=2,zero=3,schedule=zbv", "micro=1 clip dropout"},
    {"dp=2,pp=2,zero=3,schedule=zbv", "sgd micro=2 recompute layers=6 ahead"},
    {"dp=2,pp=2,zero=3", "micro=2 twice clip"},
    {"dp=2,pp=2,zero=3,schedule=zb_h1", "micro=2 twice recompute"},
    {"dp=2,pp=2,zero=3,schedule=zbv", "micro=4 rare ahead"},
    {"dp=2,pp=2,zero=3,schedule=interleaved,chunks=2", "micro=2 rare sgd offload"},
    {"dp=2,pp=3,zero=3,schedule=zb_h1", "sgd micro=2 rare"},
    {"dp=3,pp=2,zero=3", "micro=1 clip"},
    {"dp=2,pp=4,zero=3,schedule=zbv", "micro=1 layers=8"},
    {"dp=2,pp=2,tp=2,zero=3", "micro=2 clip"},
    {"dp=2,pp=2,tp=2,zero=3,schedule=gpipe", "sgd micro=1 twice"},
    {"dp=2,pp=2,tp=2,zero=3,schedule=zb_h1", "micro=1 dropout recompute"},
    {"dp=2,pp=2,tp=2,zero=3,schedule=zbv", "micro=2 clip offload ahead"},
    {"dp=2,pp=2,tp=2,zero=3,schedule=interleaved,chunks=2", "sgd micro=1 dropout"},
    {"dp=2,pp=2,tp=2,zero=3,sp_mode=split_gather,schedule=zb_h1", "micro=2 dropout"},
    {"dp=2,pp=2,tp=2,zero=3,sp_mode=ring,schedule=zbv", "sgd micro=1 recompute"},
    {"dp=2,pp=2,sp=2,zero=3,sp_mode=all_to_all", "micro=1 dropout clip"},
    {"pp=2,sp=2,zero=3,sp_mode=ring_attn,schedule=zb_h1", "micro=2 clip"},
    // Chosen kernels and partial recompute.
    {"dp=2,zero=1,optimized", "sgd micro=2 clip"},
    {"tp=2,optimized", "dropout clip"},
    {"tp=3,norm", "sgd dropout"},
    {"tp=3,jit", "micro=3 dropout"},
    {"tp=2,sp_mode=split_gather,optimized", "dropout recompute"},
    {"tp=2,sp_mode=split_gather,waits,norm", "micro=2 clip"},
    {"tp=3,sp_mode=ring,optimized", "sgd dropout"},
    {"tp=4,sp_mode=ring,waits,scores", "heads=4 dropout"},
    {"sp=2,sp_mode=all_to_all,optimized", "dropout"},
    {"sp=3,sp_mode=all_to_all,scores", "micro=2"},
    {"sp=2,sp_mode=ring_attn,optimized", "dropout clip"},
    {"sp=3,sp_mode=ring_attn,waits,jit", "sgd dropout"},
    {"pp=2,optimized", "micro=2 twice dropout"},
    {"pp=2,schedule=zb_h1,optimized", "micro=1 dropout"},
    {"pp=2,schedule=zbv,optimized", "sgd micro=2 recompute"},
    {"pp=2,tp=2,schedule=zb_h1,optimized", "micro=2 dropout recompute"},
    {"pp=2,tp=2,sp_mode=ring,schedule=zb_h1,waits,norm,jit", "micro=1"},
    {"dp=2,pp=2,tp=2,zero=2,schedule=zbv,optimized", "micro=2 clip"},
    {"pp=2,some_again", "micro=2 recompute dropout"},
    {"pp=2,schedule=zb_h1,some_again", "micro=1 recompute"},
    {"pp=3,schedule=interleaved,chunks=2,half_again", "micro=3 layers=10 recompute"},
    {"dp=2,pp=2,zero=2,half_again", "micro=1 layers=4 recompute clip"},
    // Selective recompute.
    {"dp=2", "modules dropout clip"},
    {"dp=3,zero=2", "sgd micro=2 modules"},
    {"tp=2", "modules dropout"},
    {"tp=3,optimized", "sgd micro=3 modules"},
    {"tp=2,sp_mode=split_gather", "modules dropout"},
    {"tp=3,sp_mode=ring", "micro=2 modules"},
    {"sp=2,sp_mode=all_to_all", "modules dropout"},
    {"sp=3,sp_mode=ring_attn", "sgd modules dropout"},
    {"pp=2", "micro=2 modules dropout"},
    {"pp=2,schedule=zb_h1", "micro=1 modules dropout"},
    {"pp=2,schedule=zbv", "sgd micro=2 modules layers=6"},
    {"pp=2,some_again", "micro=2 recompute modules layers=5"},
    {"dp=2,zero=3", "modules dropout"},
    {"dp=2,pp=2,zero=3,schedule=zb_h1", "micro=1 modules ahead"},
    {"dp=2,pp=2,tp=2,zero=3,sp_mode=ring,schedule=zbv", "sgd micro=1 modules"},
};

/// Parses "a=1,b" or "a=1 b" into word -> value, "" for none.
std::map<std::string, std::string> vocabulary(const std::string& text, char separator) {
  std::map<std::string, std::string> out;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, separator);) {
    const auto equals = word.find('=');
    if (!word.empty()) out[word.substr(0, equals)] = equals == std::string::npos ? "" : word.substr(equals + 1);
  }
  return out;
}

/// Removes the word it reads, so that words with no effect are found at the end.
std::int64_t take(std::map<std::string, std::string>& from, const char* word, std::int64_t otherwise) {
  const auto found = from.find(word);
  if (found == from.end()) return otherwise;
  const auto value = found->second.empty() ? 1 : std::stoll(found->second);
  from.erase(found);
  return value;
}

void train_as(std::map<std::string, std::string> how, Case& c) {
  c.micro_batch = take(how, "micro", 8);
  c.layers = take(how, "layers", 2);
  c.heads = take(how, "heads", 3);
  c.width = take(how, "width", 0);
  if (c.heads > 3) c.hidden = 4 * c.heads;
  c.adamw = take(how, "sgd", 0) == 0;
  c.max_norm = take(how, "clip", 0) != 0 ? 0.3 : 0;
  c.dropout = take(how, "dropout", 0) != 0 ? 0.2 : 0;
  c.recompute = take(how, "recompute", 0) != 0;
  if (take(how, "modules", 0) != 0) c.train += "recompute_modules = [\"attention\", \"*.intermediate.dense\"]\n";
  c.twice = take(how, "twice", 0) != 0;
  c.rare = take(how, "rare", 0) != 0;
  c.balance = take(how, "balance", 0) != 0;
  if (take(how, "tied", 0) != 0) c.vocabulary = Case::Vocabulary::tied;
  if (take(how, "words", 0) != 0) c.vocabulary = Case::Vocabulary::untied;
  for (const auto& [word, key] :
       {std::pair{"ahead", "overlap_allgather = true\n"}, std::pair{"offload", "cpu_offload = true\n"},
        std::pair{"late", "overlap_communication = false\n"}})
    if (take(how, word, 0) != 0) c.plugin += key;
  EXPECT_TRUE(how.empty()) << how.begin()->first;
}

struct Laid {
  Case c;
  std::int64_t ranks;
};

Laid lay(const Rung& rung) {
  auto layout = vocabulary(rung.layout, ',');
  Case c;
  c.plugin_name = "hybrid_parallel";
  for (const auto& [word, value] : layout) c.name += word + value + "_";
  for (const auto& [word, value] : vocabulary(rung.how, ' ')) c.name += word + value + "_";
  const auto word = [&](const char* name, const char* key) {
    const auto found = layout.find(name);
    if (found == layout.end()) return std::string();
    const auto value = found->second;
    layout.erase(found);
    c.plugin += fmt::format("{} = \"{}\"\n", key, value);
    return value;
  };
  const auto mode = word("sp_mode", "sequence_parallelism_mode");
  word("schedule", "pp_style");
  const auto dp = take(layout, "dp", 1), sp = take(layout, "sp", 1);
  c.pp = take(layout, "pp", 1);
  c.tp = take(layout, "tp", 1);
  c.plugin += fmt::format("pp_size = {}\ntp_size = {}\nzero_stage = {}\nzero_bucket_size_in_m = 0.001\n", c.pp, c.tp,
                          take(layout, "zero", 0));
  if (sp > 1) c.plugin += fmt::format("sp_size = {}\n", sp);
  if (const auto chunks = take(layout, "chunks", 0); chunks > 0)
    c.plugin += fmt::format("num_model_chunks = {}\n", chunks);
  for (const auto& [name, key] : kKeys)
    if (layout.erase(name) > 0) c.plugin += key + "\n";
  c.sequence = !mode.empty();
  EXPECT_TRUE(layout.empty()) << rung.layout;
  train_as(vocabulary(rung.how, ' '), c);
  return {c, dp * c.pp * sp * c.tp};
}

class Ladder : public testing::TestWithParam<Rung> {};

TEST_P(Ladder, EqualsOneProcess) {
  const auto [c, ranks] = lay(GetParam());
  if (ranks == world().size()) expect_same_as_one_process(c);
}

void PrintTo(const Rung& rung, std::ostream* out) { *out << rung.layout << "; " << rung.how; }

INSTANTIATE_TEST_SUITE_P(All, Ladder, testing::ValuesIn(kLadder),
                         [](const auto& value) { return lay(value.param).c.name; });

TEST(LadderRules, EveryRungRunsInSomeProgram) {
  EXPECT_GE(std::size(kLadder), 80U);
  for (const auto& rung : kLadder) {
    const auto ranks = lay(rung).ranks;
    EXPECT_TRUE(ranks <= 4 || ranks == 6 || ranks == 8) << rung.layout;
  }
}

}  // namespace
}  // namespace trireme::tests
