#include "datasets/leaf_painter.h"

#include <algorithm>
#include <cmath>

#include "core/base/random.h"

namespace trireme::datasets {
namespace {

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

double clamp01(double v) { return std::min(1.0, std::max(0.0, v)); }
double smooth(double t) {
  t = clamp01(t);
  return t * t * (3 - 2 * t);
}

/// sin(2 pi turns), by a Taylor series on a quarter turn; the error is below 1e-5.
double sine(double revolutions) {
  double t = revolutions - std::floor(revolutions);
  const double sign = t < 0.5 ? 1 : -1;
  if (t >= 0.5) t -= 0.5;
  if (t > 0.25) t = 0.5 - t;
  const double a = t * 6.283185307179586, a2 = a * a;
  return sign * a * (1 - a2 / 6 * (1 - a2 / 20 * (1 - a2 / 42 * (1 - a2 / 72))));
}
double cosine(double revolutions) { return sine(revolutions + 0.25); }

Colour mix(const Colour& a, const Colour& b, double t) {
  return {a.r + (b.r - a.r) * t, a.g + (b.g - a.g) * t, a.b + (b.b - a.b) * t};
}
Colour scale(const Colour& c, double f) { return {c.r * f, c.g * f, c.b * f}; }

class LeafPainter {
 public:
  LeafPainter(std::uint64_t key, std::int64_t size)
      : chance_(key),
        size_(size),
        pixel_(2.0 / static_cast<double>(size)),
        canvas_(static_cast<std::size_t>(size * size)),
        cover_(static_cast<std::size_t>(size * size)) {}

  /// Returns size * size * 3 bytes: RGB, rows from the top.
  std::vector<unsigned char> paint(LeafKind kind) {
    choose_shape();
    background();
    leaf();
    for (int i = chance_.whole(0, 1); i > 0; --i) blotch();
    if (kind == LeafKind::healthy)
      for (int i = chance_.whole(0, 2); i > 0; --i) blotch();
    if (kind == LeafKind::angular_spots) {
      const auto colour = mark_colour(kind);
      for (int i = chance_.whole(6, 10); i > 0; --i) angular_spot(colour);
    }
    if (kind == LeafKind::rust) rust();
    for (int i = chance_.whole(0, 2); i > 0; --i) speck();
    for (int i = chance_.whole(0, 3); i > 0; --i) drop();
    for (int i = chance_.whole(0, 1); i > 0; --i) hole();
    if (chance_.with(0.2)) stem();
    if (chance_.with(0.3)) shadow();
    finish();
    std::vector<unsigned char> out;
    out.reserve(canvas_.size() * 3);
    for (const auto& c : canvas_)
      for (const double v : {c.r, c.g, c.b}) out.push_back(static_cast<unsigned char>(clamp01(v) * 255 + 0.5));
    return out;
  }

 private:
  struct Point {
    double x, y;
  };
  struct Coordinates {
    double along, across;
  };
  using Noise = std::vector<double>;

  void choose_shape() {
    x_ = chance_.between(-0.15, 0.15);
    y_ = chance_.between(-0.15, 0.15);
    const double turn = chance_.unit();
    cos_ = cosine(turn);
    sin_ = sine(turn);
    length_ = chance_.between(1.05, 1.5);
    width_ = length_ * chance_.between(0.5, 0.8);
    bend_ = chance_.between(-0.25, 0.25);
    skew_ = chance_.between(-0.35, 0.35);
    round_ = chance_.unit();
    wave_ = chance_.between(0, 0.08);
    wave_rate_ = chance_.between(1, 4);
    wave_phase_ = chance_.unit();
    slope_ = chance_.between(0.4, 1.0);
    spacing_ = chance_.between(0.24, 0.34);
    vein_ = chance_.between(0.1, 0.45);
    midrib_ = chance_.between(0.02, 0.04);
    green_ = {chance_.between(0.15, 0.55), chance_.between(0.42, 0.75), chance_.between(0.08, 0.3)};
  }

  [[nodiscard]] Coordinates coordinates(const Point& point) const {
    const double dx = point.x - x_, dy = point.y - y_;
    const double along = dx * cos_ + dy * sin_;
    const double t = along / length_;
    return {along, dy * cos_ - dx * sin_ - bend_ * t * t};
  }

  [[nodiscard]] double half_width(double along) const {
    const double t = along / length_;
    const double parabola = std::max(0.0, 1 - t * t);
    const double profile = parabola + (std::sqrt(parabola) - parabola) * round_;
    return width_ * profile * (1 + skew_ * t) * (1 + wave_ * sine(wave_rate_ * along + wave_phase_));
  }

  /// Smooth noise from 0 to 1, with about `cells` bumps per side.
  Noise noise(int cells) {
    const auto n = static_cast<std::size_t>(cells) + 1;
    std::vector<double> lattice(n * n);
    for (auto& value : lattice) value = chance_.unit();
    Noise out(canvas_.size());
    for (std::int64_t row = 0; row < size_; ++row) {
      const double v = (static_cast<double>(row) + 0.5) / static_cast<double>(size_) * cells;
      const auto j = static_cast<std::size_t>(v);
      const double fy = smooth(v - static_cast<double>(j));
      for (std::int64_t column = 0; column < size_; ++column) {
        const double u = (static_cast<double>(column) + 0.5) / static_cast<double>(size_) * cells;
        const auto i = static_cast<std::size_t>(u);
        const double fx = smooth(u - static_cast<double>(i));
        const double* top = &lattice[j * n + i];
        const double* bottom = top + n;
        const double a = top[0] + (top[1] - top[0]) * fx, b = bottom[0] + (bottom[1] - bottom[0]) * fx;
        out[static_cast<std::size_t>(row * size_ + column)] = a + (b - a) * fy;
      }
    }
    return out;
  }

  /// Rust is mostly orange, angular spots dark brown; dirt can look like either, or pale.
  Colour mark_colour(LeafKind kind) {
    const Colour orange{0.9, 0.42, 0.06}, brown{0.5, 0.3, 0.14}, dark{0.2, 0.12, 0.06}, pale{0.7, 0.62, 0.4};
    const double t = chance_.unit();
    if (kind == LeafKind::rust) return mix(orange, brown, 0.6 * t);
    if (kind == LeafKind::angular_spots) return mix(dark, brown, 0.7 * t);
    return mix(pale, brown, t);
  }

  void blend(std::int64_t pixel, const Colour& colour, double alpha) {
    auto& target = canvas_[static_cast<std::size_t>(pixel)];
    target = mix(target, colour, clamp01(alpha));
  }

  /// Calls shade(pixel, x, y) for the pixels within `reach` of (x0, y0).
  template <class Shade>
  void around(double x0, double y0, double reach, Shade&& shade) {
    const auto first = [&](double v) {
      return std::max<std::int64_t>(0, static_cast<std::int64_t>(std::floor((v - reach + 1) / pixel_ - 0.5)));
    };
    const auto last = [&](double v) {
      return std::min<std::int64_t>(size_ - 1, static_cast<std::int64_t>(std::floor((v + reach + 1) / pixel_ + 0.5)));
    };
    for (std::int64_t row = first(y0); row <= last(y0); ++row)
      for (std::int64_t column = first(x0); column <= last(x0); ++column)
        shade(row * size_ + column, (static_cast<double>(column) + 0.5) * pixel_ - 1,
              (static_cast<double>(row) + 0.5) * pixel_ - 1);
  }

  void background() {
    const Colour kinds[] = {
        {0.45, 0.34, 0.24}, {0.55, 0.55, 0.55}, {0.62, 0.72, 0.82}, {0.25, 0.38, 0.18}, {0.85, 0.83, 0.78}};
    const auto base = scale(kinds[chance_.whole(0, 4)], chance_.between(0.5, 1.1));
    const auto other = scale(kinds[chance_.whole(0, 4)], chance_.between(0.5, 1.1));
    const auto coarse = noise(chance_.whole(2, 5)),
               fine = noise(static_cast<int>(std::min<std::int64_t>(size_ / 3, 16)));
    const double grain = chance_.between(0, 0.3), blend_in = chance_.between(0, 0.8);
    for (std::size_t i = 0; i < canvas_.size(); ++i)
      canvas_[i] = scale(mix(base, other, coarse[i] * blend_in), 1 + grain * (fine[i] - 0.5));
    // Other leaves and stones, out of focus.
    for (int i = chance_.whole(0, 3); i > 0; --i) {
      const double x = chance_.between(-1, 1), y = chance_.between(-1, 1), r = chance_.between(0.2, 0.6);
      const Colour colour{chance_.between(0.15, 0.6), chance_.between(0.25, 0.65), chance_.between(0.1, 0.5)};
      around(x, y, r, [&](std::int64_t pixel, double px, double py) {
        const double d = ((px - x) * (px - x) + (py - y) * (py - y)) / (r * r);
        blend(pixel, colour, 1.2 * (1 - d));
      });
    }
    behind_ = canvas_;
  }

  void leaf() {
    const auto tint = noise(chance_.whole(2, 4)), fine = noise(static_cast<int>(std::min<std::int64_t>(size_ / 4, 12)));
    const Colour yellow{0.62, 0.62, 0.22};
    const double yellowing = chance_.between(0, 0.5), grain = chance_.between(0, 0.25),
                 side = chance_.between(-0.2, 0.2);
    around(0, 0, 2, [&](std::int64_t pixel, double x, double y) {
      const auto at = coordinates({x, y});
      const auto i = static_cast<std::size_t>(pixel);
      const double edge = half_width(at.along) - std::fabs(at.across);
      cover_[i] = std::fabs(at.along) < length_ ? clamp01(edge / pixel_ + 0.5) : 0;
      if (cover_[i] == 0) return;
      auto colour = scale(mix(green_, yellow, yellowing * tint[i]), 1 + grain * (fine[i] - 0.5));
      colour = scale(colour, at.across > 0 ? 1 + side : 1 - side);  // one half is lighter, the other darker
      const double line = (at.along - slope_ * std::fabs(at.across)) / spacing_;
      const double lateral = std::fabs(line - std::floor(line + 0.5)) * spacing_;
      const double vein = std::max(clamp01(1 - lateral / 0.03), clamp01(1.5 - std::fabs(at.across) / midrib_));
      colour = mix(colour, {0.72, 0.78, 0.5}, vein_ * vein);
      blend(pixel, colour, cover_[i]);
    });
  }

  Point point_on_leaf() {
    // Some random tries, then the centre: the leaf may be thin, or partly outside the picture.
    for (int attempt = 0; attempt < 20; ++attempt) {
      const Point point{chance_.between(-0.95, 0.95), chance_.between(-0.95, 0.95)};
      const auto at = coordinates(point);
      if (std::fabs(at.along) < 0.92 * length_ && std::fabs(at.across) < 0.85 * half_width(at.along)) return point;
    }
    return {x_, y_};
  }

  void angular_spot(const Colour& colour) {
    const auto centre = point_on_leaf();
    const auto middle = coordinates(centre);
    const double side = middle.across < 0 ? -1 : 1;
    // The spot lies between two veins and between two straight lines across them; up to two corners are cut off.
    const double line = (middle.along - slope_ * std::fabs(middle.across)) / spacing_;
    const double low = std::floor(line) * spacing_, high = low + spacing_;
    const double reach = chance_.between(0.09, 0.17), tilt = chance_.between(-0.8, 0.8);
    const double cut_x = chance_.between(-1, 1), cut_y = chance_.between(-1, 1);
    const double cut_length = std::sqrt(cut_x * cut_x + cut_y * cut_y) + 1e-9, cut_at = chance_.between(0.04, 0.12);
    const double strength = chance_.between(0.75, 1), rim = chance_.between(0.4, 0.75);
    const auto tone = scale(colour, chance_.between(0.85, 1.15));
    around(centre.x, centre.y, 0.6, [&](std::int64_t pixel, double x, double y) {
      const auto at = coordinates({x, y});
      const double s = at.along - slope_ * std::fabs(at.across);
      const double t = std::fabs(at.across) - std::fabs(middle.across) + tilt * (at.along - middle.along);
      double distance = std::min(std::min(s - low, high - s), reach - std::fabs(t));
      distance = std::min(distance, cut_at - ((x - centre.x) * cut_x + (y - centre.y) * cut_y) / cut_length);
      distance = std::min(distance, at.across * side);
      const double edge = clamp01(distance / pixel_ + 0.5);
      if (edge > 0)
        blend(pixel, scale(tone, distance < 1.2 * pixel_ ? rim : 1.0),
              edge * strength * cover_[static_cast<std::size_t>(pixel)]);
    });
  }

  void pustule(double x0, double y0, const Colour& colour, const Colour& halo) {
    const double radius = std::max(chance_.between(0.03, 0.06), 0.8 * pixel_),
                 wide = radius * chance_.between(1.7, 2.4);
    const double strength = chance_.between(0.75, 1), halo_strength = chance_.between(0.3, 0.7);
    const auto tone = scale(colour, chance_.between(0.85, 1.15));
    around(x0, y0, wide, [&](std::int64_t pixel, double x, double y) {
      const double d = std::sqrt((x - x0) * (x - x0) + (y - y0) * (y - y0));
      const double on = cover_[static_cast<std::size_t>(pixel)];
      blend(pixel, halo, halo_strength * on * smooth((wide - d) / (wide - radius + 1e-9)));
      blend(pixel, tone, strength * on * clamp01((radius - d) / pixel_ + 0.5));
    });
  }

  void rust() {
    const auto colour = mark_colour(LeafKind::rust);
    const Colour halo{chance_.between(0.7, 0.9), chance_.between(0.7, 0.85), chance_.between(0.3, 0.5)};
    auto cluster = point_on_leaf();
    const double gathered = chance_.between(0, 0.7), spread = chance_.between(0.15, 0.4);
    for (int i = chance_.whole(26, 48); i > 0; --i) {
      auto at = point_on_leaf();
      if (i % 15 == 0) cluster = at;
      if (chance_.with(gathered)) at = {cluster.x + spread * chance_.bell(), cluster.y + spread * chance_.bell()};
      pustule(at.x, at.y, colour, halo);
    }
  }

  /// Dirt or a bruise: it has the lesions' colours, but a soft edge.
  void blotch() {
    const auto centre = point_on_leaf();
    const auto colour = mark_colour(LeafKind::healthy);
    const double a = chance_.between(0.12, 0.3), b = a * chance_.between(0.5, 1), alpha = chance_.between(0.4, 0.9);
    const double turn = chance_.unit(), c = cosine(turn), s = sine(turn);
    around(centre.x, centre.y, a, [&](std::int64_t pixel, double x, double y) {
      const double u = ((x - centre.x) * c + (y - centre.y) * s) / a, v = ((y - centre.y) * c - (x - centre.x) * s) / b;
      blend(pixel, colour, alpha * smooth(1 - (u * u + v * v)) * cover_[static_cast<std::size_t>(pixel)]);
    });
  }

  void drop() {
    const auto centre = point_on_leaf();
    const double radius = chance_.between(0.05, 0.12);
    around(centre.x, centre.y, radius, [&](std::int64_t pixel, double x, double y) {
      const double u = (x - centre.x) / radius, v = (y - centre.y) / radius, d = u * u + v * v;
      if (d > 1) return;
      blend(pixel, {0.1, 0.15, 0.1}, 0.35 * d * d);  // the rim refracts the dark surroundings
      const double glint = 1 - 6 * ((u + 0.35) * (u + 0.35) + (v + 0.35) * (v + 0.35));
      blend(pixel, {1, 1, 1}, 0.9 * clamp01(glint));
    });
  }

  void hole() {
    const auto centre = point_on_leaf();
    const double radius = chance_.between(0.06, 0.14), wave = chance_.between(0, 0.3),
                 lean = chance_.between(-0.4, 0.4);
    around(centre.x, centre.y, radius * 1.5, [&](std::int64_t pixel, double x, double y) {
      const double u = (x - centre.x) + lean * (y - centre.y), v = y - centre.y;
      const double d = std::sqrt(u * u + v * v) * (1 + wave * u * v / (u * u + v * v + 1e-9));
      blend(pixel, behind_[static_cast<std::size_t>(pixel)], clamp01((radius - d) / pixel_ + 0.5));
    });
  }

  void speck() {
    const auto centre = point_on_leaf();
    const double radius = std::max(chance_.between(0.02, 0.05), 0.6 * pixel_);
    const auto colour = mark_colour(LeafKind::healthy);
    around(centre.x, centre.y, radius * 2, [&](std::int64_t pixel, double x, double y) {
      const double d = std::sqrt((x - centre.x) * (x - centre.x) + (y - centre.y) * (y - centre.y));
      blend(pixel, colour, clamp01((radius - d) / pixel_ + 0.5));
    });
  }

  /// A soft band that is darker than the rest.
  void shadow() {
    const double turn = chance_.unit(), c = cosine(turn), s = sine(turn);
    const double from = chance_.between(-0.9, 0.5), width = chance_.between(0.2, 0.8),
                 dark = chance_.between(0.6, 0.85);
    around(0, 0, 2, [&](std::int64_t pixel, double x, double y) {
      const double d = x * c + y * s - from;
      const double depth = smooth(d / 0.15) * smooth((width - d) / 0.15);
      auto& target = canvas_[static_cast<std::size_t>(pixel)];
      target = scale(target, 1 - depth * (1 - dark));
    });
  }

  /// A stalk or blade of grass in the foreground.
  void stem() {
    const double turn = chance_.unit(), c = cosine(turn), s = sine(turn);
    const double at = chance_.between(-0.8, 0.8), half = chance_.between(0.03, 0.09), bow = chance_.between(-0.3, 0.3);
    const Colour colour{chance_.between(0.2, 0.6), chance_.between(0.3, 0.6), chance_.between(0.1, 0.35)};
    around(0, 0, 2, [&](std::int64_t pixel, double x, double y) {
      const double along = y * c - x * s;
      const double d = std::fabs(x * c + y * s - at - bow * along * along);
      blend(pixel, scale(colour, 1.15 - 0.4 * d / half), clamp01((half - d) / pixel_ + 0.5));
    });
  }

  void finish() {
    const double gain = chance_.between(0.8, 1.15), dx = chance_.between(-0.2, 0.2), dy = chance_.between(-0.2, 0.2);
    const Colour balance{chance_.between(0.88, 1.12), chance_.between(0.88, 1.12), chance_.between(0.88, 1.12)};
    around(0, 0, 2, [&](std::int64_t pixel, double x, double y) {
      auto& c = canvas_[static_cast<std::size_t>(pixel)];
      const double light = gain * (1 + dx * x + dy * y);
      c = {c.r * light * balance.r, c.g * light * balance.g, c.b * light * balance.b};
    });
    // Defocus: each pixel gets a small part of each neighbour.
    const double soft = chance_.between(0, 0.12);
    const auto sharp = canvas_;
    const auto at = [&](std::int64_t row, std::int64_t column) -> const Colour& {
      row = std::clamp<std::int64_t>(row, 0, size_ - 1);
      column = std::clamp<std::int64_t>(column, 0, size_ - 1);
      return sharp[static_cast<std::size_t>(row * size_ + column)];
    };
    const double noise_level = chance_.between(0.005, 0.03);
    for (std::int64_t row = 0; row < size_; ++row)
      for (std::int64_t column = 0; column < size_; ++column) {
        const Colour near[] = {at(row - 1, column), at(row + 1, column), at(row, column - 1), at(row, column + 1)};
        auto& c = canvas_[static_cast<std::size_t>(row * size_ + column)];
        c = scale(c, 1 - 4 * soft);
        for (const auto& n : near) c = {c.r + soft * n.r, c.g + soft * n.g, c.b + soft * n.b};
        c = {c.r + noise_level * chance_.bell(), c.g + noise_level * chance_.bell(),
             c.b + noise_level * chance_.bell()};
      }
  }

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

}  // namespace

std::vector<unsigned char> paint_leaf(std::uint64_t key, std::int64_t size, LeafKind kind) {
  return LeafPainter(key, size).paint(kind);
}

}  // namespace trireme::datasets
