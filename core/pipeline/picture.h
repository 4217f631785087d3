// Picture: a simulated step as text, with ranks as rows and time as columns. An action is drawn as its letter (F
// forward, B backward or input gradient, W weight gradient) and its microbatch, as wide as its duration; if a rank has
// several chunks, the chunk is a subscript (F3₁; in ASCII F3.1). If the label does not fit, only the letter is drawn.
// Idle time is dotted.
//
//   zb_h1: 3 ranks, 4 microbatches; step 14 s, idle 14.3 %
//   rank 0  F0─F1─F2─······B0─W0─F3─B1─W1─B2─W2─B3─W3─
//   rank 1  ···F0─F1─···B0─F2─B1─W0─F3─B2─W1─B3─W2─W3─
//   rank 2  ······F0─B0─F1─B1─F2─B2─W0─F3─B3─W1─W2─W3─
#pragma once

#include <string>
#include <vector>

#include "core/pipeline/simulator.h"

namespace trireme::pipeline {

struct PictureOptions {
  int columns = 120;         ///< maximum, including the ranks' names; the time scale is chosen to fit
  bool utf8 = true;          ///< false: ASCII only
  std::vector<int> ranks{};  ///< rank numbers of the rows; empty: from 0
};

std::string draw(const Schedule& schedule, const Timeline& timeline, const PictureOptions& options = {});

}  // namespace trireme::pipeline
