// The folder that holds the flight records of the ranks of one host. Uses nothing of LibTorch.
//
// The parent of the ranks makes one for each run, and removes it. Where the parent is not ours, the ranks of a host
// find the same name from the launcher's name for the run; the last one to end removes it, or the one that prints the
// table. A folder whose parent or, without one, whose ranks were all killed is removed by a later run of the same user.
#pragma once

#include <string>

#include "core/base/owned_folder.h"
#include "core/launch/launch_info.h"

namespace trireme::comm::flight {

/// A folder for the ranks of a new run. The destructor removes it. path() is "" where no folder can be made: then
/// nothing is recorded.
class ParentFolder {
 public:
  ParentFolder();
  [[nodiscard]] const std::string& path() const { return folder_.path(); }

 private:
  OwnedFolder folder_;
};

/// The folder of a rank: that of its parent, else one that the ranks of the host share; "" if there is none.
std::string rank_folder(const LaunchInfo& info);
/// Removes what killed processes of an earlier run with the same name have left in a folder that ranks share: their
/// records, and what they have said, if no rank of this run has come.
void remove_left_over(const std::string& folder);
/// Removes the folder when all `ranks` ranks of this host have ended normally.
void remove_if_all_ended(const std::string& folder, int ranks);
void remove_folder(const std::string& folder);

}  // namespace trireme::comm::flight
