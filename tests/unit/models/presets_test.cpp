// The sizes that BERT's and Llama's presets promise, built on the meta device.
#include <gtest/gtest.h>

#include "core/nn/parameters.h"
#include "models/bert/bert.h"
#include "models/llama/llama.h"
#include "models/qwen3/kind.h"

namespace trireme::models {
namespace {

const nn::DataSpec kTexts{.inputs = {{"input_ids", at::kLong, {-1}}}};

template <class Model, class Options, class Resolve>
std::int64_t parameters_of(const std::string& size, bool tied, const Resolve& resolve) {
  Options options;
  options.size = size;
  if constexpr (requires { options.tied; }) options.tied = tied;
  resolve(options, kTexts);
  Model model(options);
  return nn::parameter_count(model);
}

TEST(Presets, HaveTheNumbersOfParametersOfThePublishedModels) {
  for (const auto& [size, count] : {std::pair{"base", 109514298}, {"large", 335174458}})
    EXPECT_EQ((parameters_of<bert::Bert, bert::Options>(size, true, bert::resolve)), count) << size;
  const struct {
    const char* size;
    bool tied;
    std::int64_t count;
  } llamas[] = {{"1b", true, 1235814400}, {"3b", true, 3212749824}, {"8b", false, 8030261248}};
  for (const auto& l : llamas)
    EXPECT_EQ((parameters_of<llama::Llama, llama::Options>(l.size, l.tied, llama::resolve)), l.count) << l.size;
  for (const auto& [size, count] :
       {std::pair{"0.6b", std::int64_t{596049920}}, {"4b", 4022468096}, {"8b", 8190735360}}) {
    const qwen3::Kind kind;
    llama::Options options;
    options.size = size;
    kind.resolve(&options, kTexts);
    EXPECT_EQ(nn::parameter_count(*kind.make(&options)), count) << size;
  }
}

}  // namespace
}  // namespace trireme::models
