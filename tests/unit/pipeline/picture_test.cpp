#include "core/pipeline/picture.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/pipeline/schedules.h"

namespace trireme::pipeline {
namespace {

TEST(Picture, ShowsWhatRunsWhen) {
  const auto schedule = one_f_one_b(2, 2);
  EXPECT_EQ(draw(schedule, simulate(schedule, {})),
            "1f1b: 2 ranks, 2 microbatches; step 9 s, idle 33.3 %\n"
            "rank 0  F0─F1─······B0────···B1────\n"
            "rank 1  ···F0─B0────F1─B1────······\n");
  EXPECT_EQ(draw(schedule, simulate(schedule, {}), {.utf8 = false}),
            "1f1b: 2 ranks, 2 microbatches; step 9 s, idle 33.3 %\n"
            "rank 0  F0-F1-......B0----...B1----\n"
            "rank 1  ...F0-B0----F1-B1----......\n");
}

TEST(Picture, ChunksAndWeightGradients) {
  const auto schedule = zbv(1, 1);
  EXPECT_EQ(draw(schedule, simulate(schedule, {})),
            "zbv: 1 ranks x 2 chunks, 1 microbatches; step 6 s, idle 0.0 %\n"
            "rank 0  F0₀─F0₁─B0₁─B0₀─W0₁─W0₀─\n");
}

TEST(Picture, NarrowOnesOmitNumbers) {
  const auto schedule = one_f_one_b(2, 2);
  EXPECT_EQ(draw(schedule, simulate(schedule, {}), {.columns = 17}),
            "1f1b: 2 ranks, 2 microbatches; step 9 s, idle 33.3 %\n"
            "rank 0  FF··B0·B1\n"
            "rank 1  ·FB0FB1··\n");
  const auto longer = one_f_one_b(1, 11);  // "B1" for microbatch 10 would name another one
  const auto text = draw(longer, simulate(longer, {}), {.columns = 8 + 33});
  EXPECT_NE(text.find("FB9FB─\n"), std::string::npos) << text;
  EXPECT_THROW(draw(one_f_one_b(3, 2), simulate(schedule, {})), LogicError);
}

}  // namespace
}  // namespace trireme::pipeline
