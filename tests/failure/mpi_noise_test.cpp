// What the front drops of mpirun's standard error, and what it passes on, in whatever pieces it arrives.
#include "apps/front/mpi_noise.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace trireme::apps {
namespace {

std::string host() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

TEST(MpiNoise, DropsOpenMpisLinesAlone) {
  const std::string ours = "[" + host() + ":", dashes(74, '-');
  const std::vector<std::pair<std::string, std::string>> cases{
      {"trireme: an error\n", "trireme: an error\n"},
      {ours + "4711] Read -1, expected 119620, errno = 3\n", ""},
      {"first\n" + ours + "1] *** Process received signal ***\nlast", "first\nlast"},
      {ours + "4711] [[1,0],0] ORTE_ERROR_LOG: Error in file x.c\ntrireme: an error\n", "trireme: an error\n"},
      {dashes + "\nA help text\nof two lines.\n" + dashes + "\nrest\n", "rest\n"},
      {"[other-host:12] a line\n", "[other-host:12] a line\n"},
      {ours + "x] a line\n", ours + "x] a line\n"},
      {ours + "12", ours + "12"},
      {"---\n----- a heading\n", "---\n----- a heading\n"},
      {"[", "["},
      {"", ""},
      {"no end of line", "no end of line"}};
  for (const auto& [text, passes] : cases)
    for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, text.size() + 1}) {
      MpiNoise noise;
      std::string out;
      for (std::size_t at = 0; at < text.size(); at += piece) out += noise.add(text.substr(at, piece));
      out += noise.finish();
      EXPECT_EQ(out, passes) << text << " in pieces of " << piece;
    }
}

TEST(MpiNoise, HoldsNoOtherTextBack) {
  MpiNoise noise;
  EXPECT_EQ(noise.add("progress"), "progress");
  EXPECT_EQ(noise.add(" [" + host()), " [" + host());
  EXPECT_EQ(noise.add("\n[x"), "\n[x");
}

}  // namespace
}  // namespace trireme::apps
