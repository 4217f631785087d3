// Picture: a simulated step as text, ranks as rows and time as columns. Each action is its letter (F forward, B
// backward, I input gradient, W weight gradient) and its microbatch, as wide as it lasts; idle time is dotted. With
// several chunks a rank, each chunk after the first has a mark of its own.
//
//   1f1b · 4 ranks · 4 microbatches · step 21 · idle 42.9 %
//   rank 0  F0 F1 F2 F3 ··················...
#pragma once

#include <string>

#include "pipeline/schedule/simulator.h"

namespace trireme::pipeline {

struct PictureOptions {
  int columns = 120;  ///< at most, the ranks' names included; the time's scale follows
  bool utf8 = true;   ///< else ASCII alone
};

std::string draw(const Schedule& schedule, const Timeline& timeline, const PictureOptions& options = {});

}  // namespace trireme::pipeline
