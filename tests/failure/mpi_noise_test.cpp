// The front drops Open MPI's own lines from the standard error of the processes it starts and passes on all others, no
// matter how the text is split.
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/failure/counted_front.h"
#include "tests/failure/small_run.h"

namespace trireme::tests {
namespace {

std::string host() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

/// The front beside a worker that writes a text to standard error, in two parts, and fails.
class Talker : public FrontBeside {
 public:
  Talker()
      : FrontBeside([](const std::string& folder, const std::string&) {
          return "[ -n \"$OMPI_COMM_WORLD_RANK\" ] && exit 0\ncat " + folder + "/first >&2\nsleep 0.05\ncat " + folder +
                 "/second >&2\nexit 3\n";
        }) {}
  [[nodiscard]] std::string passes(const std::string& text, std::size_t cut) const {
    folder().write("first", text.substr(0, cut));
    folder().write("second", text.substr(cut));
    const auto result = run_process({command(), "train", run_.config, "--ranks", "2"});
    EXPECT_EQ(result.code, 3);
    return result.err;
  }

 private:
  SmallRun run_;
};

TEST(MpiNoise, DropsOnlyOpenMpisLines) {
  const Talker talker;
  const std::string ours = "[" + host() + ":", dashes(74, '-');
  const std::vector<std::pair<std::string, std::string>> cases{
      {"trireme: an error\n", "trireme: an error\n"},
      {"mpiexec: abort is already in progress...hit ctrl-c again to forcibly terminate\n\nrest\n", "rest\n"},
      {"mpirun: a user's line\n\nrest\n", "mpirun: a user's line\n\nrest\n"},
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

TEST(MpiNoise, IsAlsoDroppedFromTheOutput) {
  const FrontBeside talker([](const std::string&, const std::string&) {
    return "[ -n \"$OMPI_COMM_WORLD_RANK\" ] && exit 0\nprintf 'a line\\nAbort is in progress...hit ctrl-c again '\n"
           "printf 'within 5 seconds to forcibly terminate\\n\\n'\nprintf -- '" +
           std::string(74, '-') + "\\nA'\nexit 3\n";
  });
  const SmallRun run;
  EXPECT_EQ(run_process({talker.command(), "train", run.config, "--ranks", "2"}).out,
            "a line\n" + std::string(74, '-') + "\nA");
}

}  // namespace
}  // namespace trireme::tests
