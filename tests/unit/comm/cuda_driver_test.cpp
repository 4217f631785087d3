// What the CUDA driver says, asked of a fake one (fake_cuda.cpp).
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/comm/devices.h"
#include "core/comm/world.h"

namespace trireme::comm {
namespace {

TEST(CudaDriver, OnlyWhatLibTorchCanUseCounts) {
  // Once it is loaded, the system finds it by its name.
  ASSERT_NE(dlopen(TRIREME_FAKE_CUDA, RTLD_NOW), nullptr) << dlerror();
  struct Case {
    const char* name;
    std::map<std::string, std::string> driver;  ///< FAKE_CUDA_...
    int count;
    std::vector<std::string> problem;  ///< its words; empty: none
  };
  for (const auto& [name, driver, count, problem] : std::vector<Case>{
           {"good", {}, 1, {}},
           {"newer", {{"VERSION", "14020"}, {"DEVICES", "4"}, {"CAPABILITY", "120"}}, 4, {}},
           {"the oldest", {{"CAPABILITY", "75"}}, 1, {}},
           {"an old driver", {{"VERSION", "12040"}}, 0, {"supports CUDA 12.4", "needs 13.0 or newer", "update"}},
           {"an old GPU", {{"CAPABILITY", "61"}}, 0, {"GPU 0 (Fake GPU 0)", "capability 6.1", "needs 7.5"}},
           {"one old GPU of two",
            {{"DEVICES", "2"}, {"CAPABILITY", "70"}},
            0,
            {"GPU 1 (Fake GPU 1)", "7.0", "CUDA_VISIBLE_DEVICES"}},
           {"no device", {{"INIT", "100"}}, 0, {}},
           {"none visible", {{"DEVICES", "0"}}, 0, {}},
           {"out of order", {{"INIT", "802"}}, 0, {"does not start", "CUDA_ERROR_OF_THE_TEST (802)", "nvidia-smi"}},
       }) {
    SCOPED_TRACE(name);
    for (const auto* key : {"VERSION", "INIT", "DEVICES", "CAPABILITY"}) {
      const auto variable = std::string("FAKE_CUDA_") + key;
      const auto set = driver.find(key);
      if (set == driver.end())
        unsetenv(variable.c_str());
      else
        setenv(variable.c_str(), set->second.c_str(), 1);
    }
    const auto found = cuda_devices();
    EXPECT_EQ(found.count, count);
    EXPECT_EQ(found.problem.empty(), problem.empty()) << found.problem;
    EXPECT_EQ(wants_cuda("auto", found), count > 0);
    EXPECT_FALSE(wants_cuda("cpu", found));
    EXPECT_EQ(cuda_device_name(0), count > 0 ? "Fake GPU 0" : "");
    EXPECT_EQ(cuda_addresses().size(), static_cast<std::size_t>(count));
    if (count > 0) {
      EXPECT_EQ(cuda_addresses().front(), "0000:3a:00.0");
      EXPECT_TRUE(wants_cuda("cuda", found));
      continue;
    }
    try {
      (void)wants_cuda("cuda", found);
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      for (const auto& word : problem.empty() ? std::vector<std::string>{"no device"} : problem)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace trireme::comm
