// LibTorch's generator of the CPU starts anew before each test, so that inputs which a test draws are the same in every
// run, whichever other tests run. A GPU's generator is left alone: its first use would start the driver, and tests
// fork.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <mutex>

namespace trireme::tests {
namespace {

struct SeedEachTest : ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& /*test*/) override {
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(1);
  }
};

// GoogleTest's main() has no place for it.
[[maybe_unused]] const bool kIsListening = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new SeedEachTest);
  return true;
}();

}  // namespace
}  // namespace trireme::tests
