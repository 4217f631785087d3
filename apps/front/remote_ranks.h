// The ranks of another host, which an agent starts there: `trireme` by a remote shell, such as ssh.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/front/frames.h"
#include "apps/front/local_ranks.h"

namespace trireme::apps {

/// A host that cannot take part, or no longer: one message and the exit code.
struct HostFailure {
  std::string message;
  int code = 0;
};

struct RemoteEvents {
  RankEvents ranks;
  std::function<void(int port)> port;  ///< rank 0's host listens on this port
  std::function<void(const HostFailure& failure)> failed;
};

class RemoteRanks final : public HostRanks {
 public:
  /// Starts `shell HOST trireme ...`, with the path of this program. The environment of the job goes along as it is.
  /// @throws ConfigError when the shell cannot be started
  RemoteRanks(EventLoop& loop, std::string name, const std::vector<std::string>& shell, const RankJob& job,
              RemoteEvents events);
  /// Ends the remote shell; the agent then ends its ranks.
  ~RemoteRanks() override;
  void send(int signal) override;
  [[nodiscard]] bool busy() const override { return missing_ > 0; }

 private:
  void start_shell(const std::vector<std::string>& shell);
  void on_frames();
  void handle(const Frame& frame);
  void on_complaint();
  void on_closed();
  void fail(const std::string& message, int code);
  /// Ends the shell and returns its exit code.
  int end_shell();

  EventLoop& loop_;
  std::string name_, job_;
  RemoteEvents events_;
  int missing_;           ///< ranks whose end is not reported
  bool greeted_ = false;  ///< the agent runs
  pid_t shell_ = -1;
  int to_agent_ = -1, from_agent_ = -1, complaints_ = -1;
  FrameReader reader_;
  std::string complaint_;  ///< what the remote shell wrote to standard error
};

/// The variables of this process that ranks on another host get: those of Trireme, OpenMP, NCCL and CUDA, the address
/// of rank 0, and search paths. Not those that are about this host alone.
std::vector<std::string> environment_for_hosts();

}  // namespace trireme::apps
