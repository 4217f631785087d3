// `trireme launch` on one machine, with small shell scripts as ranks: variables, output, exit codes, signals, refusals.
#include "tests/command/launch.h"

#include <csignal>
#include <filesystem>

#include "tests/command/launcher_beside.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;

TEST(Launch, SetsTheVariablesOfEachRank) {
  const ProcessOptions plain{.environment = {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "TRIREME_STORE_FD=9"}};
  const auto result = launch_script(3,
                                    "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR "
                                    "$TRIREME_LAUNCHER $OMP_WAIT_POLICY",
                                    plain);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(sorted_lines(result.out), (Lines{"0/3 0/3 0 127.0.0.1 launch passive", "1/3 1/3 0 127.0.0.1 launch passive",
                                             "2/3 2/3 0 127.0.0.1 launch passive"}));
  if (!fs::exists("/dev/nvidiactl")) {
    EXPECT_EQ(launch_script(2, "echo $OMP_NUM_THREADS", plain).out, "1\n1\n");
  }
  EXPECT_EQ(launch_script(1, "echo ${OMP_NUM_THREADS-none}", plain).out, "none\n");
  EXPECT_EQ(launch_script(2, "echo $OMP_NUM_THREADS", {.environment = {"OMP_NUM_THREADS=3"}}).out, "3\n3\n");
  // Rank 0 alone inherits the socket, which listens on the port of all ranks.
  const TemporaryFolder folder;
  const auto socket =
      launch_script(2,
                    "cd " + folder.path() +
                        "; grep -q \"$(printf ':%04X 00000000:0000 0A' $MASTER_PORT)\" /proc/net/tcp && echo "
                        "$RANK $(readlink /proc/self/fd/${TRIREME_STORE_FD-none} | cut -c 1-7); : >$RANK; until [ -e "
                        "$((1 - RANK)) ]; do sleep 0.01; done",
                    plain);
  EXPECT_EQ(sorted_lines(socket.out), (Lines{"0 socket:", "1"})) << socket.err;
}

TEST(Launch, GivesArgumentsToTheProgram) {
  EXPECT_EQ(launch({"-n", "1", "printf", "%s|", "a b", "--hosts", "-n", "7", "--", "train", ""}).out,
            "a b|--hosts|-n|7|--|train||");
  EXPECT_EQ(launch({"--tag-output", "--ranks", "1", "--", "printf", "x"}).out, "[0] x");
  const TemporaryFolder folder;
  const auto script = folder.write("a program", "echo started\n");  // has no interpreter's line
  fs::permissions(script, fs::perms::owner_all);
  EXPECT_EQ(launch({"-n", "1", "./a program"}, {.folder = folder.path()}).out, "started\n");
  EXPECT_EQ(launch_script(1, "read line || echo nothing").out, "nothing\n");
}

TEST(Launch, ForwardsWholeLines) {
  const auto torn = launch_script(
      4, "for i in $(seq 300); do printf \"<$RANK$RANK$RANK\"; printf '....'; printf \"$RANK>\\n\"; done");
  EXPECT_EQ(torn.code, 0);
  const auto lines = lines_of(torn.out);
  EXPECT_EQ(lines.size(), 1200U);
  for (const auto& line : lines) {
    const auto rank = line.substr(1, 1);
    ASSERT_EQ(line, "<" + rank + rank + rank + "...." + rank + ">");
  }
  EXPECT_EQ(sorted_lines(launch({"-n", "2", "--tag-output", "sh", "-c", "echo out; echo err >&2"}).out),
            (Lines{"[0] out", "[1] out"}));
  EXPECT_EQ(sorted_lines(launch({"-n", "2", "--tag-output", "sh", "-c", "echo err >&2"}).err),
            (Lines{"[0] err", "[1] err"}));
  // The end of a line is not waited for, and bytes stay as they are.
  EXPECT_EQ(launch_script(1, "printf 'a\\rb\\000c\\377'").out, std::string("a\rb\0c\xff", 6));
  // The launcher writes to a file, which a rank can read: it waits there for what must have been written before.
  const std::string await = "await() { until grep -qF $1 /proc/$PPID/fd/1; do sleep 0.01; done; }; ";
  EXPECT_EQ(launch_script(2, await + "[ $RANK = 0 ] && { printf begin; await whole; printf end; exit; }; "
                                     "await begin; echo whole")
                .out,
            "begin\nwhole\nend");
  const auto dripping = launch_script(2, await +
                                             "[ $RANK = 1 ] && { await .; echo whole; exit; }; "
                                             "until grep -qF . /proc/$PPID/fd/1; do printf .; sleep 0.1; done; "
                                             "await whole; printf .");
  EXPECT_NE(dripping.out.find(".\nwhole\n."), std::string::npos) << dripping.out;
  EXPECT_EQ(launch_script(2, "yes | head -c 300000").out.size(), 600000U);
}

TEST(Launch, EndsAllRanksWhenOneFails) {
  struct Case {
    std::string script;
    int code;
    std::string message;
  };
  const TemporaryFolder folder;
  const auto time = own_time("600.25"), asleep = "exec sleep " + time;
  const auto after_rank_1 = "trap '' TERM; case $RANK in 0) until read pid <" + folder.path() +
                            "/a; do sleep 0.01; done 2>/dev/null; "
                            "while grep -qv ') Z' /proc/$pid/stat; do sleep 0.01; done 2>/dev/null; rm -f " +
                            folder.path() + "/a; ";
  const std::vector<Case> cases{
      {"[ $RANK = 1 ] && exit 3; " + asleep, 3, "rank 1 ended with exit code 3 and no message"},
      {"[ $RANK = 2 ] && kill -9 $$; " + asleep, 137, "rank 2 was killed by signal 9, most"},
      {"[ $RANK = 0 ] && kill -SEGV $$; " + asleep, 139, "rank 0 crashed with signal 11 (Segmentation fault)"},
      // These are not ended by SIGTERM.
      {"trap '' TERM; [ $RANK = 0 ] && exit 4; sleep " + time, 4, "rank 0 ended with exit code 4"},
      // Neither is a process that outlives the rank which started it, nor one of the rank that has failed.
      {"[ $RANK = 1 ] && { sleep " + time + " & exit 3; }; " + asleep, 3, "rank 1 ended with exit code 3"},
      {"[ $RANK = 1 ] && { sleep 0.3; exit 3; }; (trap '' TERM; sleep " + time + "); echo", 3,
       "rank 1 ended with exit code 3"},
      // Losing a peer is the consequence, not the cause: rank 0 ends when rank 1 has ended.
      {after_rank_1 + "exit 5;; 1) echo $$ >" + folder.path() + "/a; kill -9 $$;; esac", 137,
       "rank 1 was killed by signal 9"},
      {after_rank_1 + "exit 5;; 1) echo $$ >" + folder.path() + "/a; exit 4;; esac", 4,
       "rank 1 ended with exit code 4"},
  };
  for (const auto& [script, code, message] : cases) {
    SCOPED_TRACE(script);
    expect_only_refusal(launch_script(3, script), code, message);
    EXPECT_TRUE(all_gone(time));
  }
  const auto said = launch_script(2, "[ $RANK = 1 ] && { echo why >&2; exit 3; }; " + asleep);
  EXPECT_EQ(said.err, "why\ntrireme: rank 1 ended with exit code 3\n");
}

// The rank's shell decides what an error of its program means; the message is not lost.
TEST(Launch, AShellMayDealWithAnError) {
  const std::string failing = TRIREME_COMMAND " train /nowhere.toml";
  struct Case {
    std::string script;
    int code;
    std::string out;
  };
  const std::vector<Case> cases{{"exec " + failing, 2, ""},
                                {failing, 2, ""},
                                {failing + " || echo went on", 0, "went on\n"},
                                {failing + " || { sleep 0.5; echo went on; }", 0, "went on\n"},
                                {failing + " || exit 7", 7, ""}};
  for (const auto& [script, code, out] : cases) {
    SCOPED_TRACE(script);
    const auto result = launch_script(1, script);
    EXPECT_EQ(result.code, code);
    EXPECT_EQ(result.out, out);
    EXPECT_EQ(result.err.find("trireme: /nowhere.toml"), 0U) << result.err;
    auto lines = lines_of(result.err);
    // A shell that still runs a moment after the error gets a second line when it ends, as below.
    if (code != 0 && !script.starts_with("exec ") && lines.size() == 2) {
      EXPECT_EQ(lines[1], "trireme: rank 0 ended with exit code " + std::to_string(code));
      lines.pop_back();
    }
    EXPECT_EQ(lines.size(), 1U) << result.err;
  }
  // The shell waits until the launcher has said the error.
  const TemporaryFolder folder;
  const auto later = run_process({"sh", "-c",
                                  TRIREME_COMMAND " launch -n 1 sh -c '" + failing + "; until [ -s " + folder.path() +
                                      "/err ]; do sleep 0.05; done; exit 7' 2>" + folder.path() + "/err"});
  EXPECT_EQ(later.code, 7);
  EXPECT_NE(run_process({"cat", folder.path() + "/err"}).out.find("trireme: rank 0 ended with exit code 7\n"),
            std::string::npos);
}

TEST(Launch, ForwardsSignals) {
  const auto time = own_time("600.5");
  const auto loop = ": " + time + "; while :; do sleep 0.05; done";
  // Runs the script, which says in a file when it is ready, and sends the signal to the launcher.
  const auto send = [&](int signal, const std::string& script, std::vector<std::string> options = {"-n", "2"}) {
    const TemporaryFolder ready;
    options.insert(options.end(), {"sh", "-c", script + "; : >" + ready.path() + "/$RANK; " + loop});
    return launch(options, {.meanwhile = [&](pid_t launcher) {
                    for (const char* rank : {"/0", "/1"}) wait_for_file(ready.path() + rank);
                    kill(launcher, signal);
                  }});
  };
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const auto stopped = send(signal, "trap 'echo $RANK got it; exit' TERM INT HUP");
    EXPECT_EQ(stopped.code, 128 + signal);
    EXPECT_EQ(sorted_lines(stopped.out), (Lines{"0 got it", "1 got it"}));
    EXPECT_NE(stopped.err.find("trireme: stopped by signal " + std::to_string(signal)), std::string::npos)
        << stopped.err;
    EXPECT_TRUE(all_gone(time));
  }
  // A child that a rank's shell has started ends with it, and is not waited for.
  for (int turn = 0; turn < 3; ++turn) {
    const auto stopped = launch_script(1, loop, {.meanwhile = [&](pid_t launcher) {
                                         wait_for_processes(time, 2);
                                         kill(launcher, SIGTERM);
                                       }});
    expect_only_refusal(stopped, 128 + SIGTERM, "stopped by signal 15 (Terminated)");
    EXPECT_EQ(stopped.err.find("were killed"), std::string::npos) << stopped.err;
  }
  // Ranks that do not end are killed, and that is said.
  const auto late = send(SIGTERM, "trap '' TERM", {"-n", "2", "--grace", "1"});
  expect_only_refusal(late, 128 + SIGTERM,
                      "stopped by signal 15 (Terminated); ranks that still ran after 1 s (--grace) were killed");
  EXPECT_TRUE(all_gone(time));
  // As nohup does.
  const TemporaryFolder folder;
  const auto ignoring =
      run_process({"sh", "-c",
                   "trap '' HUP; exec " TRIREME_COMMAND " launch -n 1 sh -c ': >" + folder.path() +
                       "/ready; until [ -e " + folder.path() + "/sent ]; do sleep 0.05; done; sleep 0.3; echo done'"},
                  {.meanwhile = [&](pid_t launcher) {
                    wait_for_file(folder.path() + "/ready");
                    kill(launcher, SIGHUP);
                    folder.write("sent", "");
                  }});
  EXPECT_EQ(ignoring.code, 0) << ignoring.err;
  EXPECT_EQ(ignoring.out, "done\n");
  const auto noticed = send(SIGUSR1, "trap 'echo noticed; exit 0' USR1");
  EXPECT_EQ(noticed.code, 0) << noticed.err;
  EXPECT_EQ(noticed.out, "noticed\nnoticed\n");
  const auto killed = launch({"-n", "3", "sleep", time}, {.meanwhile = [&](pid_t launcher) {
                               wait_for_processes(time, 4);
                               kill(launcher, SIGKILL);
                             }});
  EXPECT_EQ(killed.code, 137);
  EXPECT_TRUE(all_gone(time));
}

TEST(Launch, RefusesBeforeAnyRankStarts) {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"true"}, "-n N is missing: the number of ranks to start  (trireme launch --help)"},
      {{"-n", "0", "true"}, "-n 0: must be at least 1 and at most 4096"},
      {{"-n", "4097", "true"}, "-n 4097: must be at least 1 and at most 4096"},
      {{"-n", "two", "true"}, "two: must be an integer"},
      {{"-n", "2"}, "PROGRAM is missing"},
      {{"-n", "2", "no-such-program"}, "no-such-program: no such program on PATH"},
      {{"-n", "2", "./no-such-program"}, "./no-such-program: no such program"},
      {{"-n", "2", "/usr"}, "/usr: no such program"},
      {{"-n", "2", "--hosts=a:2,b:2", "true"}, "--hosts: launch starts ranks on this machine alone"},
      {{"-n", "2", "--hostfile", "hosts", "true"}, "mpirun -n 8 --host node1:4,node2:4 PROGRAM, srun or torchrun"},
      {{"-n", "2", "--mpi", "true"}, "--mpi: launch starts ranks on this machine alone"},
      {{"-n", "2", "--host", "a", "true"}, "--host: launch starts ranks on this machine alone"},
  };
  for (const auto& [arguments, expected] : cases) {
    SCOPED_TRACE(expected);
    expect_only_refusal(launch(arguments), 2, expected);
  }
  const auto nested = launch({"-n", "2", TRIREME_COMMAND, "launch", "-n", "2", "true"});
  EXPECT_EQ(nested.code, 2);
  EXPECT_EQ(nested.err.find("trireme: launch starts ranks, and a launcher"), 0U) << nested.err;
  EXPECT_EQ(lines_of(nested.err).size(), 1U) << nested.err;
  const auto broken = folder.write("broken", "#!/nowhere/interpreter\n");
  fs::permissions(broken, fs::perms::owner_all);
  expect_only_refusal(launch({"-n", "2", broken}), 2, "broken: cannot be executed: No such file");
}

TEST(Launch, TrainStartsItsRanksInTheSameWay) {
  const LauncherBeside launcher([](const std::string&, const std::string&) {
    return std::string("echo $RANK/$WORLD_SIZE $TRIREME_LAUNCHER $1\n[ $RANK = 0 ] || { sleep 0.5; kill -9 $$; }\n");
  });
  const auto config = launcher.folder().write("good.toml", "[data]\nname = \"leaves\"\n");
  const auto result = run_process({launcher.command(), "train", config, "--ranks", "2"});
  expect_refusal(result, 5, "trireme: rank 1 was killed by signal 9, most often because");
  EXPECT_EQ(sorted_lines(result.out), (Lines{"0/2 launch train", "1/2 launch train"}));
}

}  // namespace
}  // namespace trireme::tests
