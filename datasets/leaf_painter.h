// LeafPainter: draws one image of datasets/leaves.h, layer by layer: background, leaf, marks, distractors, light.
//
// Coordinates: x points right and y down; the image is [-1, 1] x [-1, 1]. On the leaf, `along` runs down the midrib and
// `across` is perpendicular to it; lateral veins are the lines where along - slope * |across| is a multiple of
// `spacing`. The arithmetic uses only +, -, *, /, sqrt and floor (no sine or exponential of the C library, no fused
// multiply-add), so the bytes are the same on every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/random.h"

namespace trireme::datasets {

/// Sequential random numbers from one stream.
class Chance {
 public:
  explicit Chance(std::uint64_t key) : key_(key) {}
  double unit() {
    if (used_ == 4) {
      bits_ = random::philox(key_, 0, block_++);
      used_ = 0;
    }
    return random::to_unit(bits_.v[used_++]);
  }
  double between(double low, double high) { return low + (high - low) * unit(); }
  int whole(int low, int high) { return low + static_cast<int>(unit() * (high - low + 1)); }
  bool with(double probability) { return unit() < probability; }
  /// Mean 0, variance 1, approximately normal: a sum of uniforms needs no logarithm.
  double bell() { return (unit() + unit() + unit() + unit() - 2) * 1.7320508075688772; }

 private:
  std::uint64_t key_, block_ = 0;
  random::Four bits_{};
  int used_ = 4;
};

struct Colour {
  double r = 0, g = 0, b = 0;  ///< from 0 to 1
};

enum class LeafKind { angular_spots, healthy, rust };

class LeafPainter {
 public:
  LeafPainter(std::uint64_t key, std::int64_t size);
  /// Returns size * size * 3 bytes: RGB, rows from the top.
  std::vector<unsigned char> paint(LeafKind kind);

 private:
  struct Coordinates {
    double along, across;
  };
  using Noise = std::vector<double>;

  [[nodiscard]] Coordinates coordinates(double x, double y) const;
  [[nodiscard]] double half_width(double along) const;
  Noise noise(int cells);
  Colour mark_colour(LeafKind kind);
  void choose_shape();
  void background();
  void leaf();
  void point_on_leaf(double* x, double* y);
  void blend(std::int64_t pixel, const Colour& colour, double alpha);
  /// Calls shade(pixel, x, y) for the pixels within `reach` of (x0, y0).
  template <class Shade>
  void around(double x0, double y0, double reach, Shade&& shade);
  void angular_spot(const Colour& colour);
  void pustule(double x, double y, const Colour& colour, const Colour& halo);
  void rust();
  void blotch();
  void drop();
  void hole();
  void speck();
  void shadow();
  void stem();
  void finish();

  Chance chance_;
  std::int64_t size_;
  double pixel_;  ///< width of a pixel
  std::vector<Colour> canvas_, behind_;
  std::vector<double> cover_;  ///< fraction of a pixel that the leaf covers
  // Geometry and colour of the leaf.
  double x_ = 0, y_ = 0, cos_ = 1, sin_ = 0, length_ = 1, width_ = 0.5, bend_ = 0, skew_ = 0, round_ = 0;
  double wave_ = 0, wave_rate_ = 1, wave_phase_ = 0, slope_ = 0.7, spacing_ = 0.2, vein_ = 0.3, midrib_ = 0.03;
  Colour green_;
};

}  // namespace trireme::datasets
