// Starts ranks again when some of them have died or lost each other, as `--max-restarts` asks. Errors that a start
// would repeat (of the configuration, data, memory, numbers, checkpoints) and stops by a signal end the job as they
// are.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "apps/launcher/supervisor.h"

namespace trireme::apps {

struct Attempt {
  std::int64_t number = 0;  ///< of the restart; 0: the first start
  bool further = true;      ///< it is the first restart, or the start before it has saved a newer checkpoint
};

/// Calls `start` until the ranks end otherwise than by a death, a signal asks for a stop, or they have been started
/// again `most` times. Each restart is one line on standard output and, for a training, in kRestartVariable
/// (core/resume/restart.h). Ranks that died within a minute are started again after 1 s, 2 s, 4 s, at most 60 s.
/// Returns the exit code.
int with_restarts(Supervisor& supervisor, std::int64_t most, const std::function<RunEnd(const Attempt&)>& start);

/// `trireme train` on the ranks that it starts. A restart goes on with the run if that has saved a checkpoint, and else
/// starts as the first start did. It has fewer ranks, down to command.min_ranks, when the start before it, itself a
/// restart, has saved no newer checkpoint: the most below as many that the configuration allows.
/// With train.on_oom = "retry", a training whose memory ran out goes on once with smaller microbatches, which is no
/// restart of max_restarts. `arguments`: the command's own. @throws ConfigError
int train_with_restarts(const TrainCommand& command, std::int64_t threads, const std::vector<std::string>& arguments);

}  // namespace trireme::apps
