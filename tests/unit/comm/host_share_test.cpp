// The first rank of a host makes a value for the others; where sharing fails, each rank makes its own.
#include "core/comm/host_share.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace trireme::comm {
namespace {

constexpr int kRanks = 4;

LaunchInfo rank_of(const std::string& job, int local_rank) {
  LaunchInfo info{Launcher::mpirun, local_rank, 2 * kRanks, local_rank, kRanks};
  info.job = job.empty() ? "" : job + std::to_string(::getpid());
  return info;
}

struct Shared {
  std::vector<std::string> texts = std::vector<std::string>(kRanks);
  int made = 0;
};

/// Runs all ranks of a host at once; `make` gets its rank.
template <class Make>
Shared share(const std::string& job, Make&& make, bool first_is_late = false) {
  Shared out;
  std::atomic<int> made{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      if (first_is_late && rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      try {
        out.texts[static_cast<std::size_t>(rank)] = share_on_host(rank_of(job, rank), "a thing", [&] {
          ++made;
          return make(rank);
        });
      } catch (const std::exception& error) {
        out.texts[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (auto& thread : ranks) thread.join();
  out.made = made;
  return out;
}

TEST(HostShare, one_rank_makes_for_all) {
  std::string large(5'000'000, '\0');  // more than a socket's buffer
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 31 % 251);
  for (const auto& text : {large, std::string()})
    for (const bool late : {false, true}) {
      const auto shared = share(
          "first",
          [&](int rank) {
            EXPECT_EQ(rank, 0);
            std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the others wait for it
            return text;
          },
          late);
      EXPECT_EQ(shared.made, 1);
      for (const auto& got : shared.texts) EXPECT_TRUE(got == text) << got.size();
    }
}

// A rank that is late, or asks before the first rank does, still gets the text of its own turn.
TEST(HostShare, texts_of_one_name_come_in_turn) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([rank] {
      for (int turn = 0; turn < 4; ++turn) {
        if (rank == turn) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        const auto text = std::to_string(turn);
        // A rank that makes its own text may do so: it only must not get another turn's.
        EXPECT_EQ(share_on_host(rank_of(std::string(150, 'j'), rank), "a thing", [&] { return text; }), text)
            << "rank " << rank;
      }
    });
  for (auto& thread : ranks) thread.join();
}

TEST(HostShare, without_a_job_or_a_first_rank_each_makes_its_own) {
  const auto own = [](int rank) { return std::to_string(rank); };
  EXPECT_EQ(share("", own).made, kRanks);
  // When the first rank fails, the others make their own, and may fail too.
  const auto failing = share("failing", [](int rank) -> std::string {
    throw std::runtime_error("no such folder, rank " + std::to_string(rank));
  });
  EXPECT_EQ(failing.made, kRanks);
  for (std::size_t r = 0; r < failing.texts.size(); ++r)
    EXPECT_EQ(failing.texts[r], "no such folder, rank " + std::to_string(r));
  const auto nobody = share_on_host(
      rank_of("nobody", 2), "a thing", [&] { return own(2); }, std::chrono::milliseconds(50));
  EXPECT_EQ(nobody, "2");
}

}  // namespace
}  // namespace trireme::comm
