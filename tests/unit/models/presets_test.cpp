// The sizes that BERT's and Llama's presets promise, built on the meta device.
#include <gtest/gtest.h>

#include "core/nn/parameters.h"
#include "models/bert/kind.h"
#include "models/llama/kind.h"
#include "models/qwen3/kind.h"

namespace trireme::models {
namespace {

const nn::DataSpec kTexts{.inputs = {{"input_ids", at::kLong, {-1}}}};

template <class Kind, class Options>
std::int64_t parameters_of(const std::string& size, Options options) {
  const Kind kind;
  options.size = size;
  kind.resolve(&options, kTexts);
  return nn::parameter_count(*kind.make(&options));
}

TEST(Presets, HaveTheNumbersOfParametersOfThePublishedModels) {
  for (const auto& [size, count] : {std::pair{"base", 109514298}, {"large", 335174458}})
    EXPECT_EQ(parameters_of<bert::Kind>(size, bert::Options()), count) << size;
  for (const auto& [size, count] : {std::pair{"1b", std::int64_t{1235814400}}, {"3b", 3212749824}, {"8b", 8030261248}})
    EXPECT_EQ(parameters_of<llama::Kind>(size, llama::Options()), count) << size;
  for (const auto& [size, count] : {std::pair{"0.6b", std::int64_t{596049920}}, {"4b", 4022468096}, {"8b", 8190735360}})
    EXPECT_EQ(parameters_of<qwen3::Kind>(size, llama::Options()), count) << size;
}

}  // namespace
}  // namespace trireme::models
