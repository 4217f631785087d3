// Tests what `trireme verify` proves, and what it reports when a layout computes other numbers or cannot run.
#include <cstdlib>

#include "tests/command/small_run.h"

namespace trireme::tests {
namespace {

class Verify : public testing::Test {
 protected:
  ProcessResult verify(const std::string& layouts, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{TRIREME_COMMAND, "verify", run_.config, "--layouts", layouts};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_process(arguments);
  }
  SmallRun run_;
};

TEST_F(Verify, LayoutsThatComputeTheSame) {
  const auto result = verify(
      "dp=1; dp=2; tp=2 ; dp=2,tp=2,zero=2,train.micro_batch=1;plugin=gemini,dp=3;"
      "tp=2,sp_mode=split_gather; sp=2,tp=2,sp_mode=ring_attn; dp=2,pp=2,zero=3,schedule=zb_h1");
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_NE(result.out.find("3 steps in fp64, and the largest differences from \"dp=1\"\n"), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("all 8 layouts compute the same\n"), std::string::npos) << result.out;
  EXPECT_FALSE(fs::exists(run_.dir()));

  for (const auto* precision : {"fp32", "bf16", "fp16"}) {
    const auto rounded = verify("dp=1; tp=2,train.recompute=true; dp=1,optimizer.lr=0", {"--precision", precision});
    EXPECT_EQ(rounded.code, 1) << rounded.out << rounded.err;
    EXPECT_NE(rounded.out.find("2 of 3 layouts compute the same"), std::string::npos) << rounded.out;
  }
}

TEST_F(Verify, ReportsWhatDiffers) {
  for (const auto& [layouts, says] : {std::pair{"dp=1; dp=1,optimizer.lr=2e-3", "differs: "},  // only the weights
                                      {"tp=2; tp=2,optimizer.freeze=[\"classifier.bias\", \"cls_token\"]", "differs: "},
                                      {"dp=1; dp=2,run.seed=7; tp=2", "2 of 3 layouts compute the same"},
                                      {"dp=1; dp=1,run.memory_mb=0.01; tp=2", "did not run (exit code 4)"}}) {
    const auto result = verify(layouts);
    EXPECT_EQ(result.code, 1) << layouts << result.out;
    EXPECT_NE(result.out.find(says), std::string::npos) << result.out;
  }
}

TEST_F(Verify, ReportsOutOfMemory) {
  expect_refusal(verify("dp=1; dp=2", {"--set", "run.memory_mb=0.01"}), 4, "out of memory (run.memory_mb: ");
}

TEST_F(Verify, IgnoresRounding) {
  // A key bias has a gradient of rounding errors alone. Adam turns it into steps, which grow with decay in the
  // gradient.
  const auto result =
      verify("dp=1; tp=2; dp=2", {"--set", "optimizer.adamw=false", "--set", "optimizer.weight_decay=0.05"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  const auto lost = verify("dp=1; tp=2", {"--set", "optimizer.name=sgd", "--set", "optimizer.lr=1e300"});
  expect_refusal(lost, 6, "so there is nothing to compare; try a lower optimizer.lr");
}

TEST_F(Verify, RefusesAnImpossibleLayoutBeforeTheFirstRuns) {
  expect_only_refusal(verify("dp=1; tp=3; tp=2"), 2,
                      "--layouts: \"tp=3\": parallel.tp=3: 3 ranks cannot share 2 attention heads");
  expect_only_refusal(verify("dp=1; pp=2,schedule=zbb"), 2, "--layouts: \"pp=2,schedule=zbb\": parallel.schedule");
}

// A layout names its device, so that a GPU can be compared with the CPU. A missing device is refused at once.
TEST_F(Verify, LayoutsNameTheirDevice) {
  const auto result = verify("dp=1,device=cpu; tp=2,device=cpu");
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  expect_only_refusal(verify("dp=1; tp=2,device=tpu"), 2, "--layouts: \"tp=2,device=tpu\": run.device");
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  expect_only_refusal(verify("dp=1,device=cpu; dp=1,device=cuda"), 2,
                      "--layouts: \"dp=1,device=cuda\": run.device=\"cuda\": the CUDA driver reports no device");
  unsetenv("CUDA_VISIBLE_DEVICES");
  expect_only_refusal(verify("dp=1,device=cpu; dp=2,device=cpu", {"--precision", "tf32"}), 2,
                      "\"tf32\" is a mode of CUDA GPUs, but this run is on the CPU; use \"fp32\"");
}

TEST_F(Verify, RefusesInvalidLayouts) {
  for (const auto& [layouts, says] :
       {std::pair{"dp=2", "give two or more layouts"},
        {"dp=1; dp=two", "\"dp=two\": dp must be a number from 1 to 4096"},
        {"dp=1; tpp=2", "no key \"tpp\" (known: dp, pp, sp, tp, zero, schedule, sp_mode, plugin, device"},
        {"dp=1; plugin=gemini,tp=2", "tp and zero are options of hybrid_parallel"},
        {"dp=1; dp", "\"dp\" is not KEY=VALUE"},
        {"dp=1; dp=2,dp=4", "dp is given twice; semicolons separate layouts: \"dp=1; dp=2\""},
        {"dp=1 dp=2", "dp = \"1 dp=2\" is not a number; a comma separates the keys of a layout, a semicolon layouts"},
        {"dp=1; dp=2,train.epoch=1", "--layouts: \"dp=2,train.epoch=1\": train.epoch=1: no key \"epoch\" in [train]"},
        {"dp=1; dp=2,model.hidden_size=48", "model.hidden_size would change the numbers"},
        {"dp=1; dp=2,train.precision=bf16",
         "train.precision would change the numbers and does not belong in a layout; use --precision, which applies to "
         "all layouts"}})
    expect_only_refusal(verify(layouts), 2, says);
  ProcessOptions nowhere;
  nowhere.environment = {"TMPDIR=/nonexistent"};
  expect_only_refusal(
      run_process({TRIREME_COMMAND, "verify", run_.config, "--layouts", "dp=1; plugin=gemini,dp=1"}, nowhere), 2,
      ": No such file or directory; set TMPDIR to a folder that can be written to");
  expect_only_refusal(verify("dp=1; dp=2", {"--precision", "fp8"}), 2, "--precision fp8: must be one of fp64");
  expect_only_refusal(verify("dp=1; dp=2", {"--set", "parallel.tp=2"}), 2,
                      "use --layouts for this in verify; remove it");
  expect_only_refusal(verify("dp=1; dp=2", {"--set", "train.precision=bf16"}), 2, "use --precision for this in verify");
  expect_only_refusal(verify("dp=1; dp=2", {"--steps", "0"}), 2, "--steps 0: must be at least 1 and at most 50");
  expect_only_refusal(verify("dp=1; dp=2", {"--set", "optimizer.freeze=[\"encodr\"]"}), 2,
                      "trireme: --set optimizer.freeze=");
}

}  // namespace
}  // namespace trireme::tests
