// The cores of this process, and threads with a device: on folders and devices made for it.
#include "core/base/cores.h"

#include <c10/core/impl/FakeGuardImpl.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/device_thread.h"
#include "tests/unit/file_tree.h"

// A device type of no one else's: a fake device, whose current index is each thread's own, as CUDA's is.
C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::FakeGuardImpl<c10::DeviceType::PrivateUse1>)

namespace trireme {
namespace {

TEST(Cores, TheLeastQuotaOfTheCgroupsCounts) {
  struct Case {
    const char* name;
    std::map<std::string, std::string> files;
    std::optional<double> quota;
  };
  const std::string v1 = "sys/fs/cgroup/cpu,cpuacct/";
  const std::vector<Case> cases{
      {"no cgroups", {}, std::nullopt},
      {"v2 without a limit", {{"proc/self/cgroup", "0::/a\n"}, {"sys/fs/cgroup/a/cpu.max", "max 100000\n"}}, {}},
      {"v2", {{"proc/self/cgroup", "0::/a/b\n"}, {"sys/fs/cgroup/a/b/cpu.max", "150000 100000\n"}}, 1.5},
      {"v2, limited above",
       {{"proc/self/cgroup", "0::/a/b\n"},
        {"sys/fs/cgroup/a/b/cpu.max", "800000 100000\n"},
        {"sys/fs/cgroup/a/cpu.max", "400000 100000\n"}},
       4.0},
      {"v2 in a container", {{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", "200000 100000\n"}}, 2.0},
      {"v1",
       {{"proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/docker/1f\n"},
        {v1 + "docker/1f/cpu.cfs_quota_us", "300000\n"},
        {v1 + "docker/1f/cpu.cfs_period_us", "100000\n"}},
       3.0},
      {"v1 in a container, where the path is not below the mount",
       {{"proc/self/cgroup", "4:cpu,cpuacct:/docker/1f\n"},
        {v1 + "cpu.cfs_quota_us", "50000\n"},
        {v1 + "cpu.cfs_period_us", "100000\n"}},
       0.5},
      {"v1 without a limit",
       {{"proc/self/cgroup", "4:cpu,cpuacct:/\n"},
        {v1 + "cpu.cfs_quota_us", "-1\n"},
        {v1 + "cpu.cfs_period_us", "100000\n"}},
       {}},
      {"another controller's limit is none",
       {{"proc/self/cgroup", "4:cpuset:/\n"}, {"sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "1\n"}},
       {}},
  };
  for (const auto& [name, files, quota] : cases) {
    SCOPED_TRACE(name);
    const tests::FileTree root(files);
    EXPECT_EQ(cgroup_quota(root.path()), quota);
  }
}

TEST(Cores, AffinityLimitsThem) {
  const auto before = affinity();
  ASSERT_FALSE(before.empty());
  ASSERT_TRUE(set_affinity({before.front()}));
  EXPECT_EQ(affinity(), std::vector<int>{before.front()});
  EXPECT_EQ(usable_cores(), 1);
  ASSERT_TRUE(set_affinity(before));
  EXPECT_LE(usable_cores(), static_cast<int>(before.size()));
}

TEST(Cores, OfARankAreItsPart) {
  struct Case {
    const char* name;
    std::size_t own, of_launcher;
    std::optional<double> quota;
    int ranks, cores;
  };
  for (const auto& [name, own, of_launcher, quota, ranks, cores] : std::vector<Case>{
           {"alone", 16, 16, {}, 1, 16},
           {"shared by all", 16, 16, {}, 4, 4},
           {"more ranks than cores", 2, 2, {}, 3, 0},
           {"a core each", 1, 16, {}, 8, 1},
           {"four cores each", 4, 16, {}, 4, 4},
           {"bound to sockets", 16, 32, {}, 8, 4},
           {"an unknown launcher", 16, 0, {}, 4, 4},
           {"a quota of the container", 64, 64, 6.5, 2, 3},
           {"a quota below one core", 8, 8, 0.5, 1, 0},
           {"a quota that does not matter", 1, 16, 16.0, 8, 1},
       })
    EXPECT_EQ(share_of_cores(own, of_launcher, quota, ranks), cores) << name;
}

TEST(Cores, ListsOfCpus) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list(""), std::vector<int>{});
  EXPECT_EQ(parse_cpu_list("x,2,4-y"), std::vector<int>{2});
  EXPECT_EQ(cpu_list_text({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(cpu_list_text({}), "");
}

TEST(DeviceThread, ItsCurrentDeviceIsTheGivenOne) {
  using Fake = c10::impl::FakeGuardImpl<c10::DeviceType::PrivateUse1>;
  for (const int index : {0, 3}) {
    c10::DeviceIndex current = -1;
    device_thread(c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)), [&] {
      current = Fake().getDevice().index();
    }).join();
    EXPECT_EQ(current, index);
  }
  bool ran = false;
  device_thread(c10::kCPU, [&] { ran = true; }).join();
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace trireme
