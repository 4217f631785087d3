#include "apps/commands/process.h"

#include <ATen/Parallel.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/worker/ranks.h"
#include "core/base/clock.h"
#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/log.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/comm/host_values.h"
#include "core/plan/auto_layout.h"
#include "core/resume/resume_point.h"

namespace trireme::apps {
namespace {

/// Whether a rank has a GPU: then the host only computes what was offloaded, on all ranks at the same time.
bool beside_gpu(const train::RunConfig& config) { return config.run.device != "cpu" && comm::cuda_device_count() > 0; }

using Settings = std::map<std::string, std::string>;

/// Adds the keys of the table and its sections, without those that may differ by host: paths and local resources.
void add_keys(const config::Table& table, Settings& out) {
  static const std::set<std::string> by_host{"data.path",
                                             "data.workers",
                                             "data.prefetch",
                                             "data.cache_mb",
                                             "model.weights",
                                             "run.threads",
                                             "run.machine",
                                             "run.bind",
                                             "run.extensions",
                                             "run.memory_mb",
                                             "run.resume",
                                             "parallel.plugin",
                                             "plugin.gemini.memstats",
                                             "lora.weights"};
  for (const auto& [key, entry] : table.entries)
    if (const auto name = table.path.empty() ? key : table.path + "." + key; !by_host.contains(name))
      out[name] = config::to_toml(entry.value);
  for (const auto& [name, section] : table.tables) add_keys(section, out);
}

constexpr const char* kCommand = "the command";

/// The first key with different values, as a sentence; "" when there is none.
std::string first_difference(const Settings& own, const Settings& of_first_rank, int rank) {
  // Another command has other settings too.
  if (own.at(kCommand) != of_first_rank.at(kCommand))
    return fmt::format("rank {} runs {}, but rank 0 runs {}", rank, own.at(kCommand), of_first_rank.at(kCommand));
  auto all = own;
  all.insert(of_first_rank.begin(), of_first_rank.end());
  for (const auto& [key, any] : all) {
    const auto mine = own.find(key), other = of_first_rank.find(key);
    if (mine == own.end()) return fmt::format("rank {} does not set {}, but rank 0 has {}", rank, key, other->second);
    if (other == of_first_rank.end())
      return fmt::format("rank {} has {} = {}, but rank 0 does not set it", rank, key, any);
    if (mine->second != other->second)
      return fmt::format("rank {} has {} = {}, but rank 0 has {}", rank, key, mine->second, other->second);
  }
  return "";
}

/// What the excepted paths lead to.
void add_contents(const train::RunSetup& setup, Settings& out) {
  out["the plugin"] = setup.plugin->name();
  const auto& resume = setup.config.run.resume;
  const bool is_path = resume != train::kResumeAuto && resume != train::kResumeMust && resume != train::kResumeNever;
  out["run.resume"] = is_path ? "a path" : resume;
  const auto& data = setup.data;
  out["a training split of"] = fmt::format("{} samples ({})", data.train ? data.train->size() : 0, data.info.digest);
  for (const auto& [name, split] : {std::pair{"validation", &data.validation}, {"test", &data.test}})
    out[fmt::format("a {} split of", name)] = fmt::format("{} samples", *split ? (*split)->size() : 0);
}

}  // namespace

namespace {

void check_same(comm::World& world, const Settings& own) {
  const auto text = json_text(nlohmann::json(own));
  const auto digest = static_cast<std::int64_t>(random::hash(text));
  const auto least = comm::reduce_values(world.group(), std::vector{digest, ~digest}, comm::ReduceOp::min);
  if (least[0] == ~least[1]) return;  // the smallest digest is the largest
  const auto of_first = comm::broadcast_text(world.group(), text);
  const auto all =
      comm::gather_text(world.group(), first_difference(own, parse_json(of_first).get<Settings>(), world.rank()));
  const auto found = std::find_if(all.begin(), all.end(), [](const auto& each) { return !each.empty(); });
  const auto said = comm::broadcast_text(world.group(), found == all.end() ? "" : *found);
  throw ConfigError(said + "; start all ranks with the same file and options");
}

}  // namespace

void check_same_settings(comm::World& world, const std::string& command, const train::RunSetup& setup) {
  Settings own{{kCommand, command}};
  add_keys(setup.config.root, own);
  add_contents(setup, own);
  check_same(world, own);
}

void check_same_settings(comm::World& world, const std::string& command, const train::RunConfig& unsearched) {
  Settings own{{kCommand, command + " with a layout that the plan chooses"}};
  add_keys(unsearched.root, own);
  check_same(world, own);
}

/// OpenMP ends the process, and LibTorch's own pool waits for ever, when a thread of theirs cannot start.
/// @throws OutOfMemoryError
static void check_threads(int count) {
  constexpr std::size_t kOthers = 16;  // of the data, the backward pass and the communication
  const auto wanted = 2 * static_cast<std::size_t>(count) - 1 + kOthers;  // each has as many, one of them this one
  std::promise<void> all;
  const auto tried = all.get_future().share();
  std::vector<std::jthread> threads;
  std::string why;
  try {
    while (threads.size() < wanted) threads.emplace_back([tried] { tried.wait(); });
  } catch (const std::exception& error) {
    why = error.what();
  }
  all.set_value();
  if (!why.empty())
    throw OutOfMemoryError(fmt::format(
        "{} threads need {} of the system's, but only {} can be started ({}): raise the limits of memory and "
        "processes (ulimit -v, ulimit -u), or set a smaller run.threads",
        count, wanted, threads.size(), why));
}

comm::WorldOptions world_options(const train::RunConfig& config) {
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  };
  return {.device = config.run.device,
          .timeout = milliseconds(config.comm.timeout_s),
          .init_timeout = milliseconds(config.comm.init_timeout_s),
          .check = config.comm.check,
          .bind = config.run.bind == "auto"};
}

void tune_process(const train::RunConfig& config, const LaunchInfo& info) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  memory::count(static_cast<std::int64_t>(config.run.memory_mb * 1024 * 1024));
  const bool of_environment = config.run.threads == 0 && std::getenv("OMP_NUM_THREADS") != nullptr;
  auto threads = at::get_num_threads();
  if (config.run.threads > 0)
    threads = static_cast<int>(config.run.threads);
  else if (info.local_size > 1 && !of_environment)
    threads = beside_gpu(config) ? std::max(1, cores_of_rank(info.local_size)) : 1;
  else if (!of_environment)
    threads = std::min(threads, usable_cores());  // OpenMP knows no CPU quota
  if (threads > 1) check_threads(threads);
  if (!of_environment) at::set_num_threads(threads);
}

int run_on_training(const std::function<train::RunConfig()>& load,
                    const std::function<void(comm::World&, train::RunSetup)>& body) {
  std::optional<train::RunConfig> config;
  std::optional<train::RunSetup> setup;
  const auto prepare = [&](const LaunchInfo& info) {
    setup = train::prepare_training(*std::move(config), info, Log(info.rank));
  };
  return run_on_ranks(
      [&](const LaunchInfo& info) {
        config = load();
        const auto options = world_options(*config);
        tune_process(*config, info);
        if (!plan::is_auto(*config)) prepare(info);
        return options;
      },
      [&](comm::World& world) {
        if (!setup) {
          config = plan::with_auto_layout(*config, world, Log(world.rank())).config;
          prepare(world.info());
        }
        body(world, std::move(*setup));
      });
}

double process_begin() {
  const double now = unix_seconds();
  // The 22nd field of stat, in ticks since the machine's start; the second is a name in parentheses, with any
  // characters.
  std::ifstream file("/proc/self/stat");
  std::string stat, field;
  std::getline(file, stat);
  const auto end_of_name = stat.rfind(')');
  if (end_of_name == std::string::npos) return now;
  std::istringstream fields(stat.substr(end_of_name + 1));
  for (int number = 3; number <= 22; ++number) fields >> field;
  timespec up{};
  if (!fields || clock_gettime(CLOCK_BOOTTIME, &up) != 0) return now;
  // The end of that tick: a process must not seem to begin before what another one wrote before it.
  const double begun = (std::strtod(field.c_str(), nullptr) + 1) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return now - std::max(0.0, static_cast<double>(up.tv_sec) + 1e-9 * static_cast<double>(up.tv_nsec) - begun);
}

train::RunSetup check_for_ranks(train::RunConfig config, std::int64_t ranks) {
  auto [checked, size] = plan::without_search(std::move(config), static_cast<int>(ranks));
  const Log silent(/*rank=*/1);  // the ranks will print notes and warnings
  return train::prepare_training(std::move(checked), {.size = size, .local_size = size}, silent);
}

}  // namespace trireme::apps
