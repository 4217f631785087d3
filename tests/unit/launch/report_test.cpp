// What a rank tells its parent arrives, whatever its length and from however many threads; what is no report does no
// harm.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/environment.h"
#include "core/launch/event_loop.h"
#include "core/launch/parent.h"
#include "core/launch/process.h"
#include "core/launch/rank_report.h"

namespace trireme::ranks {
namespace {

/// What a process reports that calls `tell`, with the variable's value that `name` makes of the pipe.
RankReport report_of(const std::function<void()>& tell, const std::function<std::string(int)>& name = report_variable) {
  Pipe pipe;
  const pid_t child = fork();
  if (child == 0) {
    setenv(kReportVariable, name(pipe.write_end.get()).c_str(), 1);
    tell();
    _exit(0);
  }
  pipe.write_end = FileDescriptor();
  RankReport report;
  ReportReader reader(std::move(pipe.read_end), report);
  EventLoop loop;
  const Watch watch(loop, reader.descriptor(), [&] { reader.read(); });
  while (reader.descriptor() >= 0) loop.run_once(1000);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  return report;
}

TEST(Report, ArrivesAsItWasTold) {
  const auto report = report_of([] {
    parent::takes_signals();
    parent::trains_in("runs/a b");
    parent::unsaved("nothing is saved");
    parent::saved(40);
    parent::saved(60);
    parent::may_fit_with(4);
    parent::late(5);
    parent::failed({.code = 3, .message = "sample 7 is missing", .program = "own_loop"});
    parent::failed({.code = 5, .message = "a consequence"});
  });
  EXPECT_EQ(report.training, RankReport::Training::takes_signals);
  EXPECT_EQ(report.trains_in, "runs/a b");
  EXPECT_EQ(report.unsaved, "nothing is saved");
  EXPECT_EQ(report.saved_step, 60);
  EXPECT_EQ(report.smaller_micro_batch, 4);
  EXPECT_EQ(report.late_after, 5);
  EXPECT_FALSE(report.stopped || report.reached || report.result);
  ASSERT_TRUE(report.failure.has_value());
  EXPECT_EQ(report.failure->code, 3);
  EXPECT_EQ(report.failure->message, "sample 7 is missing");
  EXPECT_EQ(report.failure->program, "own_loop");
  EXPECT_FALSE(report.failure->of_all);
  const auto again = report_of([] {  // a second training in the same process
    for (int i = 0; i < 2; ++i) {
      parent::takes_signals();
      parent::late(5);
      parent::stopped();
      parent::trained();
    }
    parent::takes_signals();
    parent::failed({.message = "", .of_all = true});
  });
  EXPECT_EQ(again.training, RankReport::Training::takes_signals);
  EXPECT_FALSE(again.stopped);
  EXPECT_EQ(again.late_after, 0);
  EXPECT_EQ(again.failure->message, "");
  EXPECT_TRUE(again.failure->of_all);
}

TEST(Report, LongTextsOfSeveralThreadsDoNotMix) {
  for (const std::size_t length : {std::size_t{0}, kMostText, kMostText + 1, std::size_t{1'000'000}}) {
    const std::string text(length, 'x');
    const auto report = report_of([&] {
      std::thread other([] {
        for (int i = 0; i < 200; ++i) {
          parent::late(i);  // as a handler may, between the parts of a text
          parent::unsaved("short");
        }
      });
      parent::reached();
      parent::done(text);
      other.join();
    });
    EXPECT_TRUE(report.reached);
    EXPECT_EQ(report.result.value_or("none").size(), length);
    EXPECT_EQ(report.unsaved, "short");
    EXPECT_EQ(report.late_after, 199);
  }
}

TEST(Report, ADescriptorThatIsNotThePipeIsLeftAlone) {
  const std::vector<std::function<std::string(int)>> names{
      [](int) { return ""; },
      [](int) { return "ten eleven"; },
      [](int pipe) { return std::to_string(pipe); },
      [](int pipe) { return std::to_string(pipe) + " 1"; },
      [](int) { return "-1 0"; },
      [](int) {  // a file of the user under the number that the pipe had
        const int file = fileno(tmpfile());
        return report_variable(file);
      },
  };
  for (const auto& name : names) {
    const auto report = report_of(
        [] {
          if (!parent::listens()) _exit(0);
          parent::failed({.message = "told"});
        },
        name);
    EXPECT_FALSE(report.failure.has_value()) << name(0);
  }
}

TEST(Report, WhatIsNoReportIsIgnored) {
  FrameHeader unknown{static_cast<FrameKind>(99), 0, 0, 0}, too_long{FrameKind::done, 1 << 20, 0, 0};
  std::vector<std::string> texts{"any program may write here, more than a header has", std::string(100'000, '\0')};
  for (const auto& header : {unknown, too_long})
    texts.emplace_back(reinterpret_cast<const char*>(&header), sizeof header);
  signal(SIGPIPE, SIG_IGN);
  for (const auto& text : texts) {
    Pipe pipe;
    std::thread writer([&] {
      for (std::size_t done = 0; done < text.size();) {
        const auto length = write(pipe.write_end.get(), text.data() + done, text.size() - done);
        if (length < 0) break;
        done += static_cast<std::size_t>(length);
      }
      pipe.write_end = FileDescriptor();
    });
    RankReport report;
    ReportReader reader(std::move(pipe.read_end), report);
    while (reader.descriptor() >= 0) reader.read();
    writer.join();
    EXPECT_FALSE(report.result || report.failure || report.reached);
  }
}

}  // namespace
}  // namespace trireme::ranks
