// The flight records of the ranks that the command has started on this machine (core/comm/flight): owns their folder,
// and makes the one table when a rank has died or an operation has failed.
#pragma once

#include <string>
#include <vector>

#include "core/comm/flight/folder.h"
#include "core/launch/cause.h"

namespace trireme::apps {

class RankRecords {
 public:
  RankRecords(int ranks, ranks::Ranks kind) : ranks_(ranks), kind_(kind) {}
  /// Sets the variable that tells the ranks the folder, in a list of NAME=VALUE.
  void set_variable(std::vector<std::string>& environment) const;
  /// The table on a rank that was killed, or on ranks that have lost each other, below a line that says why. "" when
  /// there is none, because the ranks are no several ones of a world.
  [[nodiscard]] std::string table(const ranks::Cause& cause, const std::vector<ranks::RankState>& states) const;

 private:
  comm::flight::ParentFolder folder_;
  int ranks_;
  ranks::Ranks kind_;
};

}  // namespace trireme::apps
