// How ranks find rank 0 and agree through a store, and how many requests each of them makes.
#include "core/comm/meeting.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "core/base/error.h"
#include "core/base/file_descriptor.h"
#include "core/comm/partition.h"
#include "core/comm/topology.h"

namespace trireme::comm {
namespace {

thread_local int requests = 0;  // one thread is one rank

class CountingStore final : public c10d::HashStore {
 public:
  using HashStore::set;
  using HashStore::wait;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    ++requests;
    HashStore::set(key, value);
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    ++requests;
    return HashStore::get(key);
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    ++requests;
    return HashStore::add(key, value);
  }
  void wait(const std::vector<std::string>& keys) override {
    ++requests;
    HashStore::wait(keys);
  }
};

TEST(Meeting, rank_0_gathers_all_and_each_rank_makes_few_requests) {
  for (const int size : {1, 2, 3, 8, 32}) {
    CountingStore store;
    std::vector<std::string> answers(static_cast<std::size_t>(size));
    std::vector<int> asked(answers.size());
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank)
      ranks.emplace_back([&, rank] {
        answers[static_cast<std::size_t>(rank)] =
            decide_by_store(store, rank, size, "first/", std::to_string(rank * rank), [](const auto& said) {
              std::string all;
              for (const auto& text : said) all += text + ";";
              return all;
            });
        asked[static_cast<std::size_t>(rank)] = requests;
      });
    for (auto& thread : ranks) thread.join();
    std::string expected;
    for (int rank = 0; rank < size; ++rank) expected += std::to_string(rank * rank) + ";";
    int total = 0;
    for (std::size_t rank = 0; rank < answers.size(); ++rank) {
      EXPECT_EQ(answers[rank], expected) << "rank " << rank << " of " << size;
      if (rank > 0) {
        EXPECT_LE(asked[rank], 4) << "rank " << rank << " of " << size;
      }
      total += asked[rank];
    }
    EXPECT_EQ(total, 4 * size) << size;
  }
}

/// A store that tells when somebody has asked in vain for the key of a rank.
class AskedStore final : public c10d::HashStore {
 public:
  bool check(const std::vector<std::string>& keys) override {
    const bool here = HashStore::check(keys);
    if (!here) missed.set_value();
    return here;
  }
  std::promise<void> missed;
};

TEST(Partition, is_agreed_on_through_a_store) {
  using Lists = std::vector<std::vector<int>>;  // of each rank
  const struct {
    Lists lists;
    bool agree;
  } rows[] = {{{{0, 1}, {0, 1}, {3, 2}, {3, 2}}, true},
              {{{0, 2}, {}, {0, 2}, {}}, true},
              {{{0}, {1}, {2}, {3}}, true},
              {{{0, 1}, {1, 0}, {2, 3}, {2, 3}}, false},
              {{{0, 1}, {0, 1, 2}, {0, 1, 2}, {3}}, false},
              {{{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}, {}}, false}};
  CountingStore store;
  for (const auto& [lists, agree] : rows) {
    const auto key = fmt::format("members/{}/", &lists - &rows[0].lists);
    std::vector<std::future<int>> ranks;
    for (int rank = 0; rank < 4; ++rank)
      ranks.push_back(std::async(std::launch::async, [&, rank, &lists = lists] {
        const auto before = requests;
        check_partition(store, key, rank, 4, lists[static_cast<std::size_t>(rank)], "dp");
        return requests - before;
      }));
    for (auto& rank : ranks) {
      if (agree) {
        EXPECT_LE(rank.get(), 5);
      } else {
        EXPECT_THROW(rank.get(), CommError);
      }
    }
  }
  store.setTimeout(std::chrono::milliseconds(50));
  EXPECT_THROW(check_partition(store, "alone/", 0, 2, {0, 1}, "dp"), CommError);
}

TEST(Meeting, rank_0_says_for_whom_it_waits) {
  AskedStore store;
  const auto meet = [&](int rank) {
    return decide_by_store(
        store, rank, 3, "late/", "here", [](const auto&) { return "met"; }, std::chrono::milliseconds(1));
  };
  testing::internal::CaptureStderr();
  std::thread second([&] { (void)meet(1); });
  std::thread third([&] {
    store.missed.get_future().wait_for(std::chrono::minutes(1));  // until rank 0 has found this rank absent
    (void)meet(2);
  });
  store.wait({"late/1"});
  EXPECT_EQ(meet(0), "met");
  second.join();
  third.join();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "waiting for rank 2 of 3 to arrive\n");
}

/// Sets MASTER_ADDR and MASTER_PORT while it lives.
struct Master {
  Master(const char* host, const char* port) {
    host == nullptr ? unsetenv("MASTER_ADDR") : setenv("MASTER_ADDR", host, 1);
    port == nullptr ? unsetenv("MASTER_PORT") : setenv("MASTER_PORT", port, 1);
  }
  ~Master() {
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
  }
};

TEST(Meeting, rank_0_is_where_the_user_says) {
  const LaunchInfo one_host{Launcher::mpirun, 0, 4, 0, 4}, two_hosts{Launcher::mpirun, 0, 4, 0, 2};
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  struct Row {
    const char *host, *port;
    LaunchInfo info;
    std::string expected;
    int expected_port;
  };
  const std::vector<Row> rows{{nullptr, nullptr, one_host, "127.0.0.1", 0},
                              {nullptr, nullptr, two_hosts, name, 0},
                              {"10.1.2.3", nullptr, two_hosts, "10.1.2.3", 0},
                              {"ib0.node7", "29500", two_hosts, "ib0.node7", 29500},
                              {"10.1.2.3", "", one_host, "10.1.2.3", 0}};
  for (const auto& row : rows) {
    const Master master(row.host, row.port);
    const auto address = address_of_rank_0(row.info);
    EXPECT_EQ(address.host, row.expected);
    EXPECT_EQ(address.port, row.expected_port);
  }
  for (const char* port : {"none", "0", "70000", "80x"}) {
    const Master master("10.1.2.3", port);
    EXPECT_THROW((void)address_of_rank_0(two_hosts), ConfigError) << port;
  }
}

/// Whether a server at this address of the loopback network answers.
bool answers(const char* address, int port) {
  const FileDescriptor caller(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, address, &to.sin_addr);
  return connect(caller.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
}

TEST(Meeting, the_store_listens_at_the_address_of_rank_0_alone) {
  unsetenv("MASTER_PORT");
  setenv("MASTER_ADDR", "127.0.0.3", 1);
  const LaunchInfo here{.launcher = Launcher::srun, .rank = 0, .size = 2, .local_rank = 0, .local_size = 2};
  Address shared;
  const auto store = shared_store(here, std::chrono::seconds(10), [&](const Address& mine) { return shared = mine; });
  EXPECT_EQ(shared.host, "127.0.0.3");
  EXPECT_TRUE(answers("127.0.0.3", shared.port));
  EXPECT_FALSE(answers("127.0.0.1", shared.port));
  // Ranks on other hosts could not come to the loopback address.
  auto elsewhere = here;
  elsewhere.local_size = 1;
  const auto open =
      shared_store(elsewhere, std::chrono::seconds(10), [&](const Address& mine) { return shared = mine; });
  EXPECT_TRUE(answers("127.0.0.1", shared.port));
  unsetenv("MASTER_ADDR");
}

TEST(Meeting, a_topology_survives_its_text_form) {
  for (const auto& topology :
       {Topology{}, Topology{Backend::nccl}, Topology{Backend::staged, 12, "24 ranks share 2"}}) {
    const auto copy = Topology::parse(topology.text());
    EXPECT_EQ(copy.backend, topology.backend);
    EXPECT_EQ(copy.ranks_per_device, topology.ranks_per_device);
    EXPECT_EQ(copy.shared, topology.shared);
  }
}

}  // namespace
}  // namespace trireme::comm
