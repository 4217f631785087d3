// `trireme launch` on several hosts: a script plays the remote shell, and network namespaces play machines.
#include <csignal>
#include <filesystem>
#include <set>

#include "tests/failure/launch.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;

// Addresses for documentation stand for hosts: no network has them, and their lookup asks no server.
const std::string kB = "192.0.2.1", kC = "192.0.2.2", kDown = "192.0.2.3", kBare = "192.0.2.4", kOld = "192.0.2.5";

/// A remote shell that runs the command on this machine, or plays a host that has a problem.
class FakeHosts {
 public:
  FakeHosts() {
    const auto script = folder_.write(
        "rsh", "#!/bin/sh\nFAKE_HOST=$1; shift\ncase $FAKE_HOST in\n" + kDown +
                   ") echo 'ssh: connect to host: No route to host' >&2; exit 255;;\n" + kBare +
                   ") exec sh -c 'exec /nowhere/trireme start-agent';;\n" + kOld +
                   ") printf '\\000trireme-agent 0.0.1\\n'; exec sleep 600.125;;\nesac\n"
                   "echo 'Welcome to this host!'\ncd /\nunset TRIREME_ADDRESS\nexport FAKE_HOST\nexec sh -c \"$*\"\n");
    fs::permissions(script, fs::perms::owner_all);
    shell_ = script;
  }
  ProcessResult launch(const std::string& hosts, int ranks, const std::string& script,
                       ProcessOptions options = {}) const {
    options.environment.push_back("TRIREME_RSH=" + shell_ + " ");
    return tests::launch({"-n", std::to_string(ranks), "--hosts", hosts, "sh", "-c", script}, options);
  }
  [[nodiscard]] const std::string& folder() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  std::string shell_;
};

TEST(Launch, StartsRanksOnOtherHosts) {
  const FakeHosts hosts;
  const std::string show =
      "echo $RANK $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK ${FAKE_HOST-here$TRIREME_ADDRESS} $TRIREME_X $(pwd)"
      "${FAKE_HOST+$TRIREME_ADDRESS}";
  const auto all = hosts.launch("localhost:2," + kB + ":2," + kC + ":4", 5, show,
                                {.environment = {"TRIREME_X=x y", "TRIREME_ADDRESS=1"}, .folder = hosts.folder()});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(all.err, "");
  const auto end = " x y " + hosts.folder();
  EXPECT_EQ(sorted_lines(all.out), (Lines{"0 0/2 0 here1" + end, "1 1/2 0 here1" + end, "2 0/2 1 " + kB + end,
                                          "3 1/2 1 " + kB + end, "4 0/1 2 " + kC + end}));
  // All ranks have one address, and rank 0 the socket, on whichever host it is.
  for (const auto& first : {std::string("user@localhost"), "user@" + kB}) {
    const auto address =
        hosts.launch(first + "," + kC, 2,
                     "[ -z \"$TRIREME_STORE_FD\" ] || readlink /proc/self/fd/$TRIREME_STORE_FD | cut -c 1-6; "
                     "echo \"$MASTER_ADDR $MASTER_PORT\"; sleep 0.2");
    const auto lines = sorted_lines(address.out);
    ASSERT_EQ(lines.size(), 3U) << address.out << address.err;
    EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 2U) << address.out;
    EXPECT_EQ(std::count(lines.begin(), lines.end(), "socket"), 1);
    EXPECT_EQ(address.out.find("user@"), std::string::npos) << address.out;
    if (first == "user@" + kB) {
      EXPECT_EQ(address.out.find("127.0.0.1"), std::string::npos) << address.out;
      EXPECT_NE(address.out.find(kB + " "), std::string::npos) << address.out;
    }
  }
  const auto quiet = hosts.launch(kB + ":2", 2, "yes | head -c 300000");
  EXPECT_EQ(quiet.out.size(), 600000U);
}

TEST(Launch, ReportsWhatHappensOnOtherHosts) {
  const FakeHosts hosts;
  const std::string wait = "exec sleep 600.125";
  struct Case {
    std::string hosts, script;
    int code;
    std::string message;
  };
  const std::vector<Case> cases{
      {"localhost," + kB + ":2", "[ $RANK = 2 ] && exit 7; " + wait, 7,
       "rank 2 on host " + kB + " ended with exit code 7"},
      {kB + "," + kC + ":2", "[ $RANK = 0 ] && kill -9 $$; " + wait, 137,
       "rank 0 on host " + kB + " was killed by signal 9"},
      {"localhost," + kB + ":2", "[ $RANK = 1 ] && kill -9 $PPID; " + wait, 5,
       "host " + kB + " is down, or the connection to it was lost, with 2 ranks running"},
      {"localhost:2," + kDown, wait, 5, "host " + kDown + " cannot be reached: ssh: connect to host: No route to host"},
      {kDown + ":2," + kB, wait, 5, "host " + kDown + " cannot be reached"},
      {"localhost:2," + kBare, wait, 2, "host " + kBare + " has no "},
      {"localhost:2," + kOld, wait, 2, "host " + kOld + " has Trireme 0.0.1 and this machine " TRIREME_TEST_VERSION},
  };
  for (const auto& [where, script, code, message] : cases) {
    SCOPED_TRACE(message);
    expect_only_refusal(hosts.launch(where, 3, script), code, message);
    EXPECT_TRUE(all_gone("600.125"));
  }
  expect_only_refusal(
      run_process({TRIREME_COMMAND, "launch", "-n", "1", "--rsh", "no-such-shell", "--hosts", kB, "true"}), 2,
      "trireme: no-such-shell: No such file");
  // No server is asked for a name with an empty part.
  expect_only_refusal(hosts.launch("user@a..b," + kB, 2, wait), 2,
                      "host a..b: no address has this name; set MASTER_ADDR");
  const auto rsh = std::string("--rsh=") + hosts.folder() + "/rsh";
  expect_only_refusal(launch({"-n", "1", rsh, "--hosts", kB, "no-such-program"}), 2,
                      "host " + kB + ": no-such-program: no such program");
}

TEST(Launch, RanksOnOtherHostsGetSignalsAndDoNotOutliveIt) {
  const FakeHosts hosts;
  const auto where = "localhost," + kB;
  const auto stopped = hosts.launch(where, 2, "trap 'echo got it; exit' INT; while :; do sleep 0.05; done",
                                    {.meanwhile = [](pid_t front) { kill(front, SIGINT); }, .after = 1});
  EXPECT_EQ(stopped.code, 130);
  EXPECT_EQ(stopped.out, "got it\ngot it\n");
  const auto killed = hosts.launch(where, 2, "exec sleep 600.375",
                                   {.meanwhile = [](pid_t front) { kill(front, SIGKILL); }, .after = 1});
  EXPECT_EQ(killed.code, 137);
  EXPECT_TRUE(all_gone("600.375"));
}

// Two machines with names and addresses of their own, joined by a cable: network and UTS namespaces.
TEST(Launch, RanksOfTwoMachinesReachRank0) {
  if (!may_unshare() || run_process({"ip", "-V"}).code != 0)
    GTEST_SKIP() << "NOT TESTED: this machine allows no namespaces (unshare), or has no ip, so there is no second host";
  const TemporaryFolder folder;
  const auto shell = folder.write(
      "rsh", "#!/bin/sh\nshift\nexec nsenter -t $(cat " + folder.path() + "/machine) -n -u sh -c \"$*\"\n");
  fs::permissions(shell, fs::perms::owner_all);
  const auto script =
      folder.write("script",
                   "hostname first\nip link set lo up\n"
                   "unshare -n -u sh -c 'hostname second; exec sleep 600.0625' &\n"
                   "echo $! >" +
                       folder.path() +
                       "/machine\nsleep 0.3\n"
                       "ip link add cable type veth peer name other netns $!\n"
                       "ip addr add 10.77.0.1/24 dev cable && ip link set cable up\n"
                       "nsenter -t $! -n ip addr add 10.77.0.2/24 dev other\n"
                       "nsenter -t $! -n ip link set other up && nsenter -t $! -n ip link set lo up\n" TRIREME_COMMAND
                       " launch -n 2 --rsh " +
                       shell +
                       " --hosts $1 bash -c "
                       "'[ $RANK = 0 ] && { echo 0 on $(hostname); sleep 1; exit; }; "
                       "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT && echo 1 on $(hostname) to "
                       "$MASTER_ADDR'\ncode=$?\nkill $!\nexit $code\n");
  for (const auto& [hosts, expected] :
       {std::pair{"10.77.0.1,10.77.0.2", Lines{"0 on first", "1 on second to 10.77.0.1"}},
        {"10.77.0.2,10.77.0.1", Lines{"0 on second", "1 on first to 10.77.0.2"}},
        {"localhost,10.77.0.2", Lines{"0 on first", "1 on second to 10.77.0.1"}}}) {
    const auto result = run_process({"unshare", "-n", "-u", "sh", script, hosts});
    EXPECT_EQ(result.code, 0) << hosts << "\n" << result.err;
    EXPECT_EQ(sorted_lines(result.out), expected) << hosts;
  }
}

}  // namespace
}  // namespace trireme::tests
