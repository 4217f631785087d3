// The parts of core/comm that need no transport: the launcher's environment, the mesh's formula, CommStats.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/comm/devices.h"
#include "core/comm/mesh.h"
#include "core/comm/topology.h"
#include "core/comm/transport.h"
#include "core/comm/world.h"
#include "tests/ranks/device.h"
#include "tests/unit/file_tree.h"

namespace trireme::comm {
namespace {

using Variables = std::map<std::string, std::string>;

/// While it lives, the environment has these variables of launchers and none of the surrounding shell's.
class Environment {
 public:
  explicit Environment(const Variables& set) {
    for (const char* name : {"OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_LOCALID",
                             "SLURM_STEP_ID",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_TASKS_PER_NODE",
                             "SLURM_NODEID",
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "TRIREME_LAUNCHER",
                             "TORCHELASTIC_RESTART_COUNT",
                             "SLURM_JOB_ID",
                             "PMIX_RANK",
                             "PMIX_NAMESPACE",
                             "PMI_RANK",
                             "PMI_FD",
                             "PMI_SIZE",
                             "MPI_LOCALNRANKS",
                             "SLURM_PTY_PORT",
                             "SLURM_TASK_PID"})
      unsetenv(name);
    for (const auto& [name, value] : set) setenv(name.c_str(), value.c_str(), 1);
    names_ = set;
  }
  ~Environment() {
    for (const auto& [name, value] : names_) unsetenv(name.c_str());
  }

 private:
  Variables names_;
};

const Variables kMpirun{{"OMPI_COMM_WORLD_RANK", "3"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "h"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "none"}};
const Variables kSrun{{"SLURM_PROCID", "6"},  {"SLURM_NTASKS", "7"}, {"SLURM_LOCALID", "2"},
                      {"SLURM_STEP_ID", "0"}, {"SLURM_NODEID", "1"}, {"SLURM_TASKS_PER_NODE", "4,3"}};

Variables with(Variables set, const Variables& more) {
  for (const auto& [name, value] : more) set[name] = value;
  return set;
}

Variables without(Variables set, const std::string& name) {
  set.erase(name);
  return set;
}

TEST(Detect, reads_each_launcher) {
  struct Case {
    Variables set;
    Launcher launcher;
    int rank, size, local_rank, local_size;
    std::string text, job = "";
  };
  const Variables slurm_job = without(kSrun, "SLURM_STEP_ID");
  const std::vector<Case> cases{
      {{}, Launcher::alone, 0, 1, 0, 1, "1 process"},
      {kMpirun, Launcher::mpirun, 3, 4, 1, 2, "mpirun, 4 ranks on 2 hosts"},
      {with(kMpirun, {{"PMIX_NAMESPACE", "7241"}}), Launcher::mpirun, 3, 4, 1, 2, "mpirun, 4 ranks on 2 hosts",
       "7241."},
      {kTorchrun, Launcher::torchrun, 5, 8, 1, 4, "torchrun, 8 ranks on 2 hosts", "29500.h.none.."},
      {without(kTorchrun, "TORCHELASTIC_RUN_ID"), Launcher::torchrun, 5, 8, 1, 4, "torchrun, 8 ranks on 2 hosts",
       "29500.h..."},
      {with(kTorchrun, {{"TRIREME_LAUNCHER", "launch"}}), Launcher::launch, 5, 8, 1, 4, "8 ranks on 2 hosts",
       "29500.h.none.."},
      // Our own launchers may run inside any other.
      {with(with(kTorchrun, {{"TRIREME_LAUNCHER", "spawn"}}), kMpirun), Launcher::spawn, 5, 8, 1, 4,
       "8 ranks on 2 hosts", "29500.h.none.."},
      {with(kSrun, {{"SLURM_JOB_ID", "9"}}), Launcher::srun, 6, 7, 2, 3, "srun, 7 ranks on 3 hosts", "9.0."},
      {kSrun, Launcher::srun, 6, 7, 2, 3, "srun, 7 ranks on 3 hosts"},
      // A batch script has a Slurm rank, but runs once.
      {slurm_job, Launcher::alone, 0, 1, 0, 1, "1 process"},
      // A launcher inside an srun step takes precedence.
      {with(kSrun, kMpirun), Launcher::mpirun, 3, 4, 1, 2, "mpirun, 4 ranks on 2 hosts"},
      {with(kSrun, kTorchrun), Launcher::torchrun, 5, 8, 1, 4, "torchrun, 8 ranks on 2 hosts", "29500.h.none.."},
      // The step's size counts, not the job's.
      {with(kSrun, {{"SLURM_NTASKS", "16"}, {"SLURM_STEP_NUM_TASKS", "7"}}), Launcher::srun, 6, 7, 2, 3,
       "srun, 7 ranks on 3 hosts"},
      {with(kSrun, {{"SLURM_TASKS_PER_NODE", "1,6"}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}}), Launcher::srun, 6, 7, 2,
       4, "srun, 7 ranks on 2 hosts"},
      // Variables that srun shares with MPICH's launcher do not hide srun, and one process alone has no launcher.
      {with(kSrun, {{"PMI_SIZE", "7"}, {"PMI_RANK", "6"}}), Launcher::srun, 6, 7, 2, 3, "srun, 7 ranks on 3 hosts"},
      {{{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}}, Launcher::alone, 0, 1, 0, 1, "1 process"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "1"}}, Launcher::alone, 0, 1, 0, 1, "1 process"},
      {{{"RANK", "3"}}, Launcher::alone, 0, 1, 0, 1, "1 process"},
      {{{"WORLD_SIZE", "2"}}, Launcher::alone, 0, 1, 0, 1, "1 process"},
      {with(kMpirun, {{"PMI_SIZE", "4"}}), Launcher::mpirun, 3, 4, 1, 2, "mpirun, 4 ranks on 2 hosts"},
      {{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
       Launcher::mpirun,
       0,
       1,
       0,
       1,
       "mpirun, 1 rank on 1 host"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    const Environment environment(c.set);
    const auto info = detect_launch();
    EXPECT_EQ(info.launcher, c.launcher);
    EXPECT_EQ(info.rank, c.rank);
    EXPECT_EQ(info.size, c.size);
    EXPECT_EQ(info.local_rank, c.local_rank);
    EXPECT_EQ(info.local_size, c.local_size);
    EXPECT_EQ(info.text(), c.text);
    EXPECT_EQ(info.job, c.job);
  }
}

TEST(Detect, refuses_half_an_environment) {
  const std::vector<std::pair<Variables, std::string>> cases{
      {without(kMpirun, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE"},
      {without(kTorchrun, "WORLD_SIZE"), "WORLD_SIZE"},
      {without(kSrun, "SLURM_NTASKS"), "SLURM_NTASKS"},
      {with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "two"}}), "OMPI_COMM_WORLD_RANK=two"},
      {with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "-1"}}), "OMPI_COMM_WORLD_RANK=-1"},
      {with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "4"}}), "rank 4 of 4"},
      {with(kTorchrun, {{"LOCAL_RANK", "4"}}), "local rank 4 of 4"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR is not set"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", ""}, {"MASTER_PORT", "29500"}}, "MASTER_ADDR is not set"},
  };
  for (const auto& [set, word] : cases) {
    const Environment environment(set);
    try {
      (void)detect_launch();
      ADD_FAILURE() << "no error for " << word;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

TEST(Detect, refuses_the_launcher_of_another_mpi) {
  const Variables hydra{{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"PMI_FD", "5"}, {"MPI_LOCALNRANKS", "3"}};
  const Variables bare{{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}};
  const Variables in_slurm = with(with(kSrun, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}), hydra);
  for (const auto& set : {hydra, bare, in_slurm}) {
    const Environment environment(set);
    try {
      (void)detect_launch();
      ADD_FAILURE() << "taken for a single process";
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      for (const auto& word : {std::string("PMI_SIZE=3"), std::string("its MPI is Open MPI"), std::string("--ranks 3")})
        EXPECT_NE(text.find(word), std::string::npos) << text;
    }
  }
}

TEST(Cuda, environment_before_the_driver_starts) {
  const char *loading = "CUDA_MODULE_LOADING", *connections = "CUDA_DEVICE_MAX_CONNECTIONS",
             *cudnn = "TORCH_CUDNN_SDPA_DEPRIORITIZED";
  struct Case {
    const char* name;
    LaunchInfo info;
    int gpus;
    const char* given;  ///< by the user, of kernel loading
    const char *loading, *connections;
  };
  const auto ranks = [](int size, int local) { return LaunchInfo{Launcher::mpirun, 0, size, 0, local}; };
  for (const auto& c : std::vector<Case>{
           {"alone", {}, 1, "", "", ""},
           {"a GPU each", ranks(4, 4), 4, "", "EAGER", "32"},
           {"a GPU each, on two hosts", ranks(4, 2), 2, "", "EAGER", "32"},
           {"an unknown number of GPUs", ranks(2, 2), 0, "", "EAGER", "32"},
           {"shared GPUs", ranks(4, 4), 2, "", "", "32"},
           {"the user's choice", ranks(2, 2), 2, "LAZY", "LAZY", "32"},
       }) {
    SCOPED_TRACE(c.name);
    for (const char* name : {loading, connections, cudnn}) unsetenv(name);
    if (*c.given != '\0') setenv(loading, c.given, 1);
    set_cuda_environment(c.info, c.gpus);
    const auto value = [](const char* name) {
      return std::string(std::getenv(name) == nullptr ? "" : std::getenv(name));
    };
    EXPECT_EQ(value(loading), c.loading);
    EXPECT_EQ(value(connections), c.connections);
    EXPECT_EQ(value(cudnn), "1");
  }
  for (const char* name : {loading, connections, cudnn}) unsetenv(name);
}

TEST(Cuda, cores_of_a_rank_are_near_its_gpu) {
  // Two nodes of 4 cores with two hardware threads each, numbered as Linux does: 0-3 and 8-11, 4-7 and 12-15.
  std::map<std::string, std::string> files{{"sys/devices/system/cpu/online", "0-15\n"},
                                           {"sys/devices/system/node/node0/cpulist", "0-3,8-11\n"},
                                           {"sys/devices/system/node/node1/cpulist", "4-7,12-15\n"}};
  for (int cpu = 0; cpu < 16; ++cpu)
    files[fmt::format("sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu)] =
        fmt::format("{},{}\n", cpu % 8, cpu % 8 + 8);
  const std::string a = "0000:01:00.0", b = "0000:02:00.0", c = "0000:81:00.0", d = "0000:82:00.0",
                    lost = "0000:99:00.0";
  for (const auto& [gpu, node] : {std::pair{a, 0}, {b, 0}, {c, 1}, {d, 1}, {lost, -1}})
    files["sys/bus/pci/devices/" + gpu + "/numa_node"] = std::to_string(node) + "\n";
  const tests::FileTree machine(files);
  const auto all = parse_cpu_list("0-15");
  struct Case {
    const char* name;
    int local_rank, local_size;
    std::vector<std::string> gpus;
    int installed;
    std::vector<int> allowed;
    const char* cores;
  };
  for (const auto& row : std::vector<Case>{
           {"the first of two on a node", 0, 4, {a, b, c, d}, 4, all, "0-1,8-9"},
           {"the second", 1, 4, {a, b, c, d}, 4, all, "2-3,10-11"},
           {"the last, on the other node", 3, 4, {a, b, c, d}, 4, all, "6-7,14-15"},
           {"one rank a node", 1, 2, {a, c}, 2, all, "4-7,12-15"},
           {"GPUs in turn between the nodes", 2, 4, {a, c, b, d}, 4, all, "2-3,10-11"},
           {"ranks that share GPUs", 5, 8, {a, b, c, d}, 4, all, "3,11"},
           {"more ranks than cores share them all", 8, 10, {a}, 1, all, "0-3,8-11"},
           {"one GPU of four visible to each rank: the others' nodes are unknown", 1, 4, {c}, 4, all, "4-7,12-15"},
           {"two of four visible to each rank", 0, 2, {a, b}, 4, all, "0-3,8-11"},
           {"one GPU in the machine", 1, 2, {a}, 1, all, "2-3,10-11"},
           {"a single rank", 0, 1, {a, c}, 2, all, ""},
           {"bound already", 0, 2, {a, c}, 2, parse_cpu_list("0-7"), ""},
           {"an unknown node", 0, 2, {lost, a}, 2, all, ""},
           {"no such device", 0, 2, {"0000:00:00.0"}, 1, all, ""},
           {"no GPU", 0, 2, {}, 0, all, ""},
       }) {
    SCOPED_TRACE(row.name);
    const LaunchInfo info{Launcher::launch, row.local_rank, row.local_size, row.local_rank, row.local_size};
    EXPECT_EQ(cpu_list_text(choose_cores(info, row.gpus, row.installed, row.allowed, machine.path()).cores), row.cores);
  }
}

TEST(Cuda, binds_the_threads_that_run_already) {
  const auto before = affinity();
  std::promise<void> asked;
  std::promise<std::vector<int>> answer;
  std::thread other([&] {
    asked.get_future().wait();
    answer.set_value(affinity());
  });
  EXPECT_TRUE(bind_process({before.front()}));
  asked.set_value();
  EXPECT_EQ(answer.get_future().get(), std::vector<int>{before.front()});
  other.join();
  EXPECT_EQ(affinity(), std::vector<int>{before.front()});
  EXPECT_TRUE(bind_process(before));
}

TEST(Topology, decides_the_backend_by_hosts_and_devices) {
  struct Case {
    const char* name;
    std::vector<RankLocation> locations;
    Backend backend;
    const char* shared;
    int ranks_per_device = 1;
    bool over_mpi = false;
  };
  const RankLocation a0{"a", "0000:01:00"}, a1{"a", "0000:02:00"}, b0{"b", "0000:01:00"}, cpu{"a", ""},
      b_cpu{"b boot", ""};
  const std::vector<Case> cases{
      {"no GPU", {cpu, cpu}, Backend::cpu, ""},
      {"each its own", {a0, a1}, Backend::nccl, ""},
      {"the same address on two hosts", {a0, b0}, Backend::nccl, ""},
      {"all on one", {a0, a0, a0}, Backend::staged, "3 ranks share 1 GPU", 3},
      {"one host short of GPUs, the other not", {a0, a1, b0, b0}, Backend::staged, "4 ranks share 3 GPUs", 2, true},
      {"CPU ranks of two hosts", {cpu, b_cpu}, Backend::cpu, "", 1, true},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const auto topology = choose_backend(c.locations, c.over_mpi);
    EXPECT_EQ(topology.backend, c.backend);
    EXPECT_EQ(topology.shared, c.shared);
    EXPECT_EQ(topology.ranks_per_device, c.ranks_per_device);
  }
  const struct {
    std::vector<RankLocation> locations;
    bool over_mpi;
    const char* words;
  } refused[]{
      {{a0, cpu, b0}, true, "2 of 3 ranks would use CUDA"},
      {{a0, b_cpu}, false, "1 of 2 ranks would use CUDA"},
      {{cpu, cpu, b_cpu, b_cpu}, false, "rank 0 is on host a and rank 2 on host b: without MPI"},
      {{cpu, cpu, b_cpu, b_cpu}, false, "`mpirun -n 4 --host a:2,b:2 PROGRAM`"},
      {{a0, a1, b0, b0}, false, "rank 0 is on host a and rank 2 on host b: without MPI"},
  };
  for (const auto& c : refused) {
    try {
      (void)choose_backend(c.locations, c.over_mpi);
      ADD_FAILURE() << "no error: " << c.words;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(c.words), std::string::npos) << error.what();
    }
  }
  for (const auto& location : {a0, cpu, RankLocation{host_identity(), "x"}}) {
    const auto copy = RankLocation::parse(location.text());
    EXPECT_EQ(copy.host, location.host);
    EXPECT_EQ(copy.device, location.device);
  }
  EXPECT_FALSE(host_identity().empty());
}

template <class Kind>
void expect_start_refuses(const LaunchInfo& info, const std::string& device, const std::string& word) {
  try {
    (void)World::start(info, {.device = device});
    ADD_FAILURE() << "started, instead of saying " << word;
  } catch (const Kind& error) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST(World, refuses_what_has_no_transport) {
  const Environment environment({});
  const LaunchInfo torchrun{Launcher::torchrun, 1, 4, 1, 4};
  expect_start_refuses<ConfigError>(torchrun, "cpu", "MASTER_ADDR");
  expect_start_refuses<ConfigError>({Launcher::torchrun, 1, 4, 1, 2}, "cpu",
                                    "torchrun, 4 ranks on 2 hosts: without MPI, CPU ranks");
  expect_start_refuses<ConfigError>({}, "gpu", "auto, cpu or cuda");
  if (cuda_device_count() == 0) expect_start_refuses<ConfigError>({}, "cuda", "no device");
}

TEST(World, never_splits_into_worlds_of_one_rank) {
  const Environment environment({});
  expect_start_refuses<CommError>({Launcher::srun, 0, 2, 0, 2}, "cpu", "--mpi=pmix");
  expect_start_refuses<CommError>({Launcher::srun, 0, 4, 0, 2}, "cpu", "--mpi=pmix");  // on two hosts
  expect_start_refuses<CommError>({Launcher::mpirun, 0, 2, 0, 2}, "cpu", "MPI sees rank 0 of 1");
}

TEST(World, of_one_rank_supports_every_call_and_sends_nothing) {
  const auto world = World::start({}, {.device = "cpu"});
  EXPECT_EQ(world->size(), 1);
  EXPECT_EQ(world->transport(), "none");
  EXPECT_TRUE(world->device().is_cpu());
  const auto& group = world->group();
  EXPECT_EQ(group.axis(), "world");
  auto tensor = at::arange(6, at::kLong);
  for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product})
    group.all_reduce(tensor, op);
  auto work = group.all_reduce_async(tensor);
  EXPECT_TRUE(work.done());
  work.wait();
  EXPECT_TRUE(at::equal(tensor, at::arange(6, at::kLong)));
  auto copy = at::zeros({2, 3}, at::kLong);
  group.all_gather_into(copy, tensor);
  EXPECT_TRUE(at::equal(copy.flatten(), tensor));
  group.barrier();
  Mesh mesh(*world, {{"dp", 1}, {"tp", 1}});
  mesh.group("dp").all_reduce(tensor);
  EXPECT_TRUE(world->comm_stats().totals().empty());
  EXPECT_THROW(Group().all_reduce(tensor), LogicError);
  EXPECT_THROW(group.all_gather_into(copy, copy.narrow(0, 0, 1)), CommError);
  EXPECT_THROW((void)world->make_group({1}, "dp"), LogicError);
}

TEST(Mesh, the_product_of_the_axes_is_the_world) {
  Mesh::validate({{"dp", 2}, {"pp", 1}, {"tp", 4}}, 8);
  const std::vector<std::tuple<Axes, int, std::string>> cases{
      {{{"dp", 2}, {"pp", 1}, {"tp", 3}}, 9, "dp 2 x pp 1 x tp 3 = 6, but the world has 9 ranks; set dp to 3"},
      {{{"dp", 2}, {"tp", 3}}, 8, "set tp to 4"},
      {{{"dp", 2}, {"pp", 2}, {"tp", 3}}, 7, "start 12 ranks"},
      {{{"dp", 2}}, 1, "the world has 1 rank;"},
      {{{"dp", 0}}, 1, "axis dp is 0"},
      {{{"dp", 1}, {"dp", 1}}, 1, "dp is given twice"},
  };
  for (const auto& [axes, size, word] : cases) {
    try {
      Mesh::validate(axes, size);
      ADD_FAILURE() << "no error for " << word;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

TEST(CommStats, adds_up_per_axis_and_call) {
  CommStats comm_stats;
  comm_stats.add("dp", "all_reduce", 10, 40, 1.5);
  comm_stats.add("dp", "all_reduce", 1, 4, 1.5);
  comm_stats.add("tp", "all_reduce", 2, 3, 1.0 / 2);
  const auto totals = comm_stats.totals();
  ASSERT_EQ(totals.size(), 2u);
  const auto& dp = totals.at({"dp", "all_reduce"});
  EXPECT_EQ(dp.calls, 2u);
  EXPECT_EQ(dp.payload_elements, 11u);
  EXPECT_EQ(dp.payload_bytes, 44u);
  EXPECT_EQ(dp.wire_bytes, 66u);
  EXPECT_EQ(totals.at({"tp", "all_reduce"}).wire_bytes, 2u);  // rounded
}

// The device of the multi-rank suites: a misspelt one must not silently test on the CPU.
TEST(TestDevice, is_cpu_or_cuda) {
  EXPECT_EQ(tests::test_device(nullptr), "cpu");
  EXPECT_EQ(tests::test_device("cpu"), "cpu");
  EXPECT_EQ(tests::test_device("cuda"), "cuda");
  for (const char* wrong : {"", "gpu", "CUDA", "cuda:0", "auto"})
    EXPECT_THROW((void)tests::test_device(wrong), std::invalid_argument) << wrong;
}

// This test is the last one, because LibTorch's CUDA library stays in the process.
TEST(Cuda, the_library_is_beside_ours_and_resolves_every_symbol) { EXPECT_NO_THROW((void)load_cuda_library()); }

}  // namespace
}  // namespace trireme::comm
