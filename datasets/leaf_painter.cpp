#include "datasets/leaf_painter.h"

#include <algorithm>
#include <cmath>

namespace trireme::datasets {
namespace {

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

}  // namespace

LeafPainter::LeafPainter(std::uint64_t key, std::int64_t size)
    : chance_(key),
      size_(size),
      pixel_(2.0 / static_cast<double>(size)),
      canvas_(static_cast<std::size_t>(size * size)),
      cover_(static_cast<std::size_t>(size * size)) {}

std::vector<unsigned char> LeafPainter::paint(LeafKind kind) {
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

void LeafPainter::choose_shape() {
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

LeafPainter::Coordinates LeafPainter::coordinates(double x, double y) const {
  const double dx = x - x_, dy = y - y_;
  const double along = dx * cos_ + dy * sin_;
  const double t = along / length_;
  return {along, dy * cos_ - dx * sin_ - bend_ * t * t};
}

double LeafPainter::half_width(double along) const {
  const double t = along / length_;
  const double parabola = std::max(0.0, 1 - t * t);
  const double profile = parabola + (std::sqrt(parabola) - parabola) * round_;
  return width_ * profile * (1 + skew_ * t) * (1 + wave_ * sine(wave_rate_ * along + wave_phase_));
}

/// Smooth noise from 0 to 1, with about `cells` bumps per side.
LeafPainter::Noise LeafPainter::noise(int cells) {
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
Colour LeafPainter::mark_colour(LeafKind kind) {
  const Colour orange{0.9, 0.42, 0.06}, brown{0.5, 0.3, 0.14}, dark{0.2, 0.12, 0.06}, pale{0.7, 0.62, 0.4};
  const double t = chance_.unit();
  if (kind == LeafKind::rust) return mix(orange, brown, 0.6 * t);
  if (kind == LeafKind::angular_spots) return mix(dark, brown, 0.7 * t);
  return mix(pale, brown, t);
}

void LeafPainter::blend(std::int64_t pixel, const Colour& colour, double alpha) {
  auto& target = canvas_[static_cast<std::size_t>(pixel)];
  target = mix(target, colour, clamp01(alpha));
}

template <class Shade>
void LeafPainter::around(double x0, double y0, double reach, Shade&& shade) {
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

void LeafPainter::background() {
  const Colour kinds[] = {
      {0.45, 0.34, 0.24}, {0.55, 0.55, 0.55}, {0.62, 0.72, 0.82}, {0.25, 0.38, 0.18}, {0.85, 0.83, 0.78}};
  const auto base = scale(kinds[chance_.whole(0, 4)], chance_.between(0.5, 1.1));
  const auto other = scale(kinds[chance_.whole(0, 4)], chance_.between(0.5, 1.1));
  const auto coarse = noise(chance_.whole(2, 5)), fine = noise(static_cast<int>(std::min<std::int64_t>(size_ / 3, 16)));
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

void LeafPainter::leaf() {
  const auto tint = noise(chance_.whole(2, 4)), fine = noise(static_cast<int>(std::min<std::int64_t>(size_ / 4, 12)));
  const Colour yellow{0.62, 0.62, 0.22};
  const double yellowing = chance_.between(0, 0.5), grain = chance_.between(0, 0.25), side = chance_.between(-0.2, 0.2);
  around(0, 0, 2, [&](std::int64_t pixel, double x, double y) {
    const auto at = coordinates(x, y);
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

void LeafPainter::point_on_leaf(double* x, double* y) {
  // Some random tries, then the centre: the leaf may be thin, or partly outside the picture.
  for (int attempt = 0; attempt < 20; ++attempt) {
    *x = chance_.between(-0.95, 0.95);
    *y = chance_.between(-0.95, 0.95);
    const auto at = coordinates(*x, *y);
    if (std::fabs(at.along) < 0.92 * length_ && std::fabs(at.across) < 0.85 * half_width(at.along)) return;
  }
  *x = x_;
  *y = y_;
}

void LeafPainter::angular_spot(const Colour& colour) {
  double x0 = 0, y0 = 0;
  point_on_leaf(&x0, &y0);
  const auto centre = coordinates(x0, y0);
  const double side = centre.across < 0 ? -1 : 1;
  // The spot lies between two veins and between two straight lines across them; up to two corners are cut off.
  const double line = (centre.along - slope_ * std::fabs(centre.across)) / spacing_;
  const double low = std::floor(line) * spacing_, high = low + spacing_;
  const double reach = chance_.between(0.09, 0.17), tilt = chance_.between(-0.8, 0.8);
  const double cut_x = chance_.between(-1, 1), cut_y = chance_.between(-1, 1);
  const double cut_length = std::sqrt(cut_x * cut_x + cut_y * cut_y) + 1e-9, cut_at = chance_.between(0.04, 0.12);
  const double strength = chance_.between(0.75, 1), rim = chance_.between(0.4, 0.75);
  const auto tone = scale(colour, chance_.between(0.85, 1.15));
  around(x0, y0, 0.6, [&](std::int64_t pixel, double x, double y) {
    const auto at = coordinates(x, y);
    const double s = at.along - slope_ * std::fabs(at.across);
    const double t = std::fabs(at.across) - std::fabs(centre.across) + tilt * (at.along - centre.along);
    double distance = std::min(std::min(s - low, high - s), reach - std::fabs(t));
    distance = std::min(distance, cut_at - ((x - x0) * cut_x + (y - y0) * cut_y) / cut_length);
    distance = std::min(distance, at.across * side);
    const double edge = clamp01(distance / pixel_ + 0.5);
    if (edge > 0)
      blend(pixel, scale(tone, distance < 1.2 * pixel_ ? rim : 1.0),
            edge * strength * cover_[static_cast<std::size_t>(pixel)]);
  });
}

void LeafPainter::pustule(double x0, double y0, const Colour& colour, const Colour& halo) {
  const double radius = std::max(chance_.between(0.03, 0.06), 0.8 * pixel_), wide = radius * chance_.between(1.7, 2.4);
  const double strength = chance_.between(0.75, 1), halo_strength = chance_.between(0.3, 0.7);
  const auto tone = scale(colour, chance_.between(0.85, 1.15));
  around(x0, y0, wide, [&](std::int64_t pixel, double x, double y) {
    const double d = std::sqrt((x - x0) * (x - x0) + (y - y0) * (y - y0));
    const double on = cover_[static_cast<std::size_t>(pixel)];
    blend(pixel, halo, halo_strength * on * smooth((wide - d) / (wide - radius + 1e-9)));
    blend(pixel, tone, strength * on * clamp01((radius - d) / pixel_ + 0.5));
  });
}

void LeafPainter::rust() {
  const auto colour = mark_colour(LeafKind::rust);
  const Colour halo{chance_.between(0.7, 0.9), chance_.between(0.7, 0.85), chance_.between(0.3, 0.5)};
  double x0 = 0, y0 = 0;
  point_on_leaf(&x0, &y0);
  const double gathered = chance_.between(0, 0.7), spread = chance_.between(0.15, 0.4);
  for (int i = chance_.whole(26, 48); i > 0; --i) {
    double x = 0, y = 0;
    point_on_leaf(&x, &y);
    if (i % 15 == 0) {
      x0 = x;
      y0 = y;
    }
    if (chance_.with(gathered)) {
      x = x0 + spread * chance_.bell();
      y = y0 + spread * chance_.bell();
    }
    pustule(x, y, colour, halo);
  }
}

/// Dirt or a bruise: it has the lesions' colours, but a soft edge.
void LeafPainter::blotch() {
  double x0 = 0, y0 = 0;
  point_on_leaf(&x0, &y0);
  const auto colour = mark_colour(LeafKind::healthy);
  const double a = chance_.between(0.12, 0.3), b = a * chance_.between(0.5, 1), alpha = chance_.between(0.4, 0.9);
  const double turn = chance_.unit(), c = cosine(turn), s = sine(turn);
  around(x0, y0, a, [&](std::int64_t pixel, double x, double y) {
    const double u = ((x - x0) * c + (y - y0) * s) / a, v = ((y - y0) * c - (x - x0) * s) / b;
    blend(pixel, colour, alpha * smooth(1 - (u * u + v * v)) * cover_[static_cast<std::size_t>(pixel)]);
  });
}

void LeafPainter::drop() {
  double x0 = 0, y0 = 0;
  point_on_leaf(&x0, &y0);
  const double radius = chance_.between(0.05, 0.12);
  around(x0, y0, radius, [&](std::int64_t pixel, double x, double y) {
    const double u = (x - x0) / radius, v = (y - y0) / radius, d = u * u + v * v;
    if (d > 1) return;
    blend(pixel, {0.1, 0.15, 0.1}, 0.35 * d * d);  // the rim refracts the dark surroundings
    const double glint = 1 - 6 * ((u + 0.35) * (u + 0.35) + (v + 0.35) * (v + 0.35));
    blend(pixel, {1, 1, 1}, 0.9 * clamp01(glint));
  });
}

void LeafPainter::hole() {
  double x0 = 0, y0 = 0;
  point_on_leaf(&x0, &y0);
  const double radius = chance_.between(0.06, 0.14), wave = chance_.between(0, 0.3), lean = chance_.between(-0.4, 0.4);
  around(x0, y0, radius * 1.5, [&](std::int64_t pixel, double x, double y) {
    const double u = (x - x0) + lean * (y - y0), v = y - y0;
    const double d = std::sqrt(u * u + v * v) * (1 + wave * u * v / (u * u + v * v + 1e-9));
    blend(pixel, behind_[static_cast<std::size_t>(pixel)], clamp01((radius - d) / pixel_ + 0.5));
  });
}

void LeafPainter::speck() {
  double x0 = 0, y0 = 0;
  point_on_leaf(&x0, &y0);
  const double radius = std::max(chance_.between(0.02, 0.05), 0.6 * pixel_);
  const auto colour = mark_colour(LeafKind::healthy);
  around(x0, y0, radius * 2, [&](std::int64_t pixel, double x, double y) {
    const double d = std::sqrt((x - x0) * (x - x0) + (y - y0) * (y - y0));
    blend(pixel, colour, clamp01((radius - d) / pixel_ + 0.5));
  });
}

/// A soft band that is darker than the rest.
void LeafPainter::shadow() {
  const double turn = chance_.unit(), c = cosine(turn), s = sine(turn);
  const double from = chance_.between(-0.9, 0.5), width = chance_.between(0.2, 0.8), dark = chance_.between(0.6, 0.85);
  around(0, 0, 2, [&](std::int64_t pixel, double x, double y) {
    const double d = x * c + y * s - from;
    const double depth = smooth(d / 0.15) * smooth((width - d) / 0.15);
    auto& target = canvas_[static_cast<std::size_t>(pixel)];
    target = scale(target, 1 - depth * (1 - dark));
  });
}

/// A stalk or blade of grass in the foreground.
void LeafPainter::stem() {
  const double turn = chance_.unit(), c = cosine(turn), s = sine(turn);
  const double at = chance_.between(-0.8, 0.8), half = chance_.between(0.03, 0.09), bow = chance_.between(-0.3, 0.3);
  const Colour colour{chance_.between(0.2, 0.6), chance_.between(0.3, 0.6), chance_.between(0.1, 0.35)};
  around(0, 0, 2, [&](std::int64_t pixel, double x, double y) {
    const double along = y * c - x * s;
    const double d = std::fabs(x * c + y * s - at - bow * along * along);
    blend(pixel, scale(colour, 1.15 - 0.4 * d / half), clamp01((half - d) / pixel_ + 0.5));
  });
}

void LeafPainter::finish() {
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
      c = {c.r + noise_level * chance_.bell(), c.g + noise_level * chance_.bell(), c.b + noise_level * chance_.bell()};
    }
}

}  // namespace trireme::datasets
