// How this process was started, and which rank of how many it is: from the environment alone, before any process group
// exists. Uses nothing of LibTorch, because the command starts ranks without it.
#pragma once

#include <string>

namespace trireme {

/// launch: `trireme launch` and --ranks; spawn: trireme::spawn.
enum class Launcher { alone, mpirun, srun, torchrun, launch, spawn };

/// The launcher and the ranks, according to the environment.
struct LaunchInfo {
  Launcher launcher = Launcher::alone;
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::string job{};                       ///< the launcher's name for this run, the same on all ranks; "" if unknown
  [[nodiscard]] std::string text() const;  ///< "mpirun, 4 ranks on 1 host"; of our launchers "4 ranks on 1 host"
};

/// Our own launcher counts first, because it may run inside any other; then torchrun and mpirun, which may run inside
/// an srun step. A process that a user has started in the shell of an interactive step of Slurm (srun --pty) is alone.
/// @throws ConfigError when the variables of a launcher are incomplete or impossible, or are those of another MPI
LaunchInfo detect_launch();

}  // namespace trireme
