#include "core/comm/meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/log.h"

namespace trireme::comm {

Address address_of_rank_0(const LaunchInfo& info) {
  Address address{"127.0.0.1", 0};
  char name[256] = {};
  if (const auto host = environment("MASTER_ADDR"); !host.empty())
    address.host = host;
  else if (info.local_size < info.size && gethostname(name, sizeof name - 1) == 0)
    address.host = name;
  const auto port = environment("MASTER_PORT");
  if (port.empty()) return address;
  char* end = nullptr;
  const long number = std::strtol(port.c_str(), &end, 10);
  if (*end != '\0' || number < 1 || number > 65535)
    throw ConfigError(
        fmt::format("MASTER_PORT={}: expected a port number from 1 to 65535; unset it to use any free "
                    "port",
                    port));
  address.port = static_cast<int>(number);
  return address;
}

namespace {

/// For rank 0: the ranks whose texts are missing.
std::string absent_ranks(c10d::Store& store, int size, const std::string& key) {
  std::vector<int> absent;
  for (int other = 1; other < size; ++other)
    if (!store.check({key + std::to_string(other)})) absent.push_back(other);
  return absent.empty() ? "a rank" : fmt::format("rank {}", fmt::join(absent, ", rank "));
}

/// Names the ranks that let rank 0 wait: the launcher, or the user, may not have started them.
void report_absent_ranks(c10d::Store& store, int size, const std::string& key, std::chrono::milliseconds silence) {
  if (store.getTimeout() <= silence) return;
  std::vector<std::string> keys;
  for (int other = 1; other < size; ++other) keys.push_back(key + std::to_string(other));
  try {
    store.wait(keys, silence);
  } catch (const c10::Error&) {
    Log().note("waiting for {} of {} to arrive", absent_ranks(store, size, key), size);
  }
}

std::string decide_in(c10d::Store& store, int rank, int size, const std::string& key, const std::string& mine,
                      const Answer& answer, std::chrono::milliseconds silence) {
  const auto bytes = [](const std::string& text) { return std::vector<std::uint8_t>(text.begin(), text.end()); };
  const auto read = [&](const std::string& name) {
    const auto value = store.get(key + name);
    return std::string(value.begin(), value.end());
  };
  std::string decided;
  if (rank == 0) {
    std::vector<std::string> said{mine};
    report_absent_ranks(store, size, key, silence);
    for (int other = 1; other < size; ++other) said.push_back(read(std::to_string(other)));
    decided = answer(said);
    store.set(key + "answer", bytes(decided));
  } else {
    store.set(key + std::to_string(rank), bytes(mine));
    decided = read("answer");
  }
  if (store.add(key + "read", 1) == size) store.set(key + "all", std::vector<std::uint8_t>{1});
  if (rank == 0) store.wait({key + "all"});
  return decided;
}

}  // namespace

std::string decide_by_store(c10d::Store& store, int rank, int size, const std::string& key, const std::string& mine,
                            const Answer& answer, std::chrono::milliseconds silence) {
  try {
    return decide_in(store, rank, size, key, mine, answer, silence);
  } catch (const c10::Error& error) {
    if (rank != 0)
      throw CommError(
          fmt::format("the ranks did not all meet: rank 0 did not answer, perhaps because another rank is "
                      "missing ({})",
                      error.what_without_backtrace()));
    std::string who = "a rank";
    try {
      who = absent_ranks(store, size, key);
    } catch (const c10::Error&) {
      // The store is gone; the first error says why.
    }
    throw CommError(fmt::format("the ranks did not all meet: {} of {} did not arrive within {:.3g} s ({})", who, size,
                                static_cast<double>(store.getTimeout().count()) / 1000,
                                error.what_without_backtrace()));
  }
}

}  // namespace trireme::comm
