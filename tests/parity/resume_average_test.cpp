// What else a resumed run goes on with: the average of the weights, evaluations within an epoch, an early stop.
#include <gtest/gtest.h>

#include "tests/parity/resume.h"

namespace trireme::tests {
namespace {

// The average of the weights is a part of the run: it is what an evaluation sees, and it is resumed. Evaluations within
// an epoch and the count towards an early stop go on as well.
TEST_F(Resume, TheAverageOfTheWeights) {
  const std::string average = kConstant + "--set train.ema_decay=0.9 --set train.eval_every=2 ";
  train("averaged", 2, average);
  EXPECT_EQ(steps_of("averaged", "eval", "validation"), (std::vector<int>{2, 4, 6, 8, 10, 12, 14, 16, 18}));
  const auto plain = once(2, kConstant);
  EXPECT_FALSE(bytes_of(model(plain)) == bytes_of(model("averaged"))) << "the average was not exported";
  const auto weights = [&](const std::string& name) {
    return tensors_in(checkpoint(name, "step-00000018"), "weights");
  };
  EXPECT_TRUE(weights(plain) == weights("averaged")) << "the average has changed the training";
  train("averaged-on", 2, average + "--resume " + checkpoint("averaged", "step-00000008"));
  EXPECT_TRUE(bytes_of(model("averaged")) == bytes_of(model("averaged-on")));
  EXPECT_EQ(summary("averaged").at("final"), summary("averaged-on").at("final"));
  // A checkpoint's average is what `trireme eval` loads.
  EXPECT_FALSE(tensors_in(checkpoint("averaged", "step-00000018"), "average").empty());
}

// With a learning rate of 0 no evaluation is better than the first.
TEST_F(Resume, AnEarlyStopStaysOne) {
  const std::string patient = "--set optimizer.lr=0 --set train.eval_every=2 --set train.patience=3 ";
  train("patient", 2, patient);
  EXPECT_EQ(summary("patient").at("steps"), 8);
  EXPECT_EQ(summary("patient").at("stopped_by"), "train.patience");
  EXPECT_EQ(steps_of("patient", "eval", "validation"), (std::vector<int>{2, 4, 6, 8}));
  train("patient", 2, patient + "--resume must");
  EXPECT_EQ(summary("patient").at("steps"), 8) << "the resumed run trained on";
  train("patient", 2, patient + "--resume must --set train.patience=5");
  EXPECT_EQ(summary("patient").at("steps"), 12);
}

}  // namespace
}  // namespace trireme::tests
