// What the front drops of the standard error of what it starts (Open MPI's own lines), and what it passes on, in
// whatever pieces it arrives.
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/failure/small_run.h"

namespace trireme::tests {
namespace {

std::string host() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

/// The front beside a worker that writes a text to standard error, in two parts, and fails.
class Talker {
 public:
  Talker() {
    fs::create_directories(folder_.path() + "/bin");
    fs::copy_file(TRIREME_COMMAND, folder_.path() + "/bin/trireme");
    const auto built = fs::path(TRIREME_COMMAND).parent_path().parent_path();
    fs::create_directory_symlink(built / "share", folder_.path() + "/share");
    const auto script = folder_.write("libexec/trireme/trireme-worker",
                                      "#!/bin/sh\n[ -n \"$OMPI_COMM_WORLD_RANK\" ] && exit 0\ncat " + folder_.path() +
                                          "/first >&2\nsleep 0.05\ncat " + folder_.path() + "/second >&2\nexit 3\n");
    fs::permissions(script, fs::perms::owner_all);
  }
  [[nodiscard]] std::string passes(const std::string& text, std::size_t cut) const {
    folder_.write("first", text.substr(0, cut));
    folder_.write("second", text.substr(cut));
    const auto outcome = run_process({folder_.path() + "/bin/trireme", "train", run_.config, "--ranks", "2"});
    EXPECT_EQ(outcome.code, 3);
    return outcome.err;
  }

 private:
  TemporaryFolder folder_;
  SmallRun run_;
};

TEST(MpiNoise, DropsOpenMpisLinesAlone) {
  const Talker talker;
  const std::string ours = "[" + host() + ":", dashes(74, '-');
  const std::vector<std::pair<std::string, std::string>> cases{
      {"trireme: an error\n", "trireme: an error\n"},
      {ours + "4711] Read -1, expected 119620, errno = 3\n", ""},
      {"first\n" + ours + "1] *** Process received signal ***\nlast", "first\nlast"},
      {ours + "4711] [[1,0],0] ORTE_ERROR_LOG: Error in file x.c\ntrireme: an error\n", "trireme: an error\n"},
      {dashes + "\nA help text\nof two lines.\n" + dashes + "\nrest\n", "rest\n"},
      {dashes + "\nA help text\ntrireme: rank 1: an error\n" + dashes + "\n", "trireme: rank 1: an error\n"},
      {dashes + "\na rule of somebody else's\n", dashes + "\na rule of somebody else's\n"},
      {"----------------\na table\n----------------\n", "----------------\na table\n----------------\n"},
      {ours + "12] a user's own logger\n", ours + "12] a user's own logger\n"},
      {"[other-host:12] *** a line\n", "[other-host:12] *** a line\n"},
      {ours + "x] a line\n", ours + "x] a line\n"},
      {ours + "12", ours + "12"},
      {"---\n----- a heading\n", "---\n----- a heading\n"},
      {"[", "["}};
  for (const auto& [text, passes] : cases)
    for (const std::size_t cut : {std::size_t{0}, std::size_t{1}, text.size() / 2})
      EXPECT_EQ(talker.passes(text, cut), passes) << text << " cut at " << cut;
}

}  // namespace
}  // namespace trireme::tests
