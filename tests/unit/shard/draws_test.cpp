// Initial weights have the same bits in every slice, at every offset, with every number of threads and every vector
// width, and follow their distributions.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/shard/draw_values.h"
#include "core/shard/init.h"

namespace trireme::shard {
namespace {

constexpr std::uint64_t kKey = 0x9d3c51f00dULL;

struct Kind {
  const char* name;
  Init init;
  std::uint64_t bits;  ///< hash of 2^16 elements' bits
};
const std::array<Kind, 3> kKinds{Kind{"normal", Init::normal(0.25, 2), 0x2137df8077f299cd},
                                 Kind{"trunc_normal", Init::trunc_normal(0, 0.02), 0x420c5218110b9afb},
                                 Kind{"uniform", Init::uniform(-1, 3), 0x4cb683fb2434f29b}};

std::vector<float> drawn(const Init& init, std::int64_t begin, std::int64_t count, std::uint64_t key = kKey) {
  std::vector<float> out(static_cast<std::size_t>(count));
  draw_values(init, key, begin, count, out.data());
  return out;
}

bool same_bits(const float* a, const float* b, std::int64_t count) {
  return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(float)) == 0;
}

TEST(Draws, EveryOffsetAndLengthIsASliceOfTheWhole) {
  constexpr std::int64_t kEnd = 400;  // three blocks of 128 and a part
  for (const auto& kind : kKinds)
    for (const std::int64_t base : {std::int64_t{0}, (std::int64_t{1} << 34) - 130}) {
      const auto whole = drawn(kind.init, base, kEnd);
      for (std::int64_t begin = 0; begin < kEnd; ++begin)
        for (std::int64_t end = begin; end <= kEnd; ++end)
          ASSERT_TRUE(same_bits(drawn(kind.init, base + begin, end - begin).data(), whole.data() + begin, end - begin))
              << kind.name << " [" << begin << ", " << end << ") from " << base;
    }
}

template <Init::Kind kind>
FourValues one_quad(const Init& init, std::uint64_t quad) {
  return four_values<kind>(static_cast<float>(init.a), static_cast<float>(init.b), random::philox(kKey, 0, quad));
}

TEST(Draws, VectorsGiveTheBitsOfOneQuadAtATime) {
  for (const auto& kind : kKinds) {
    const auto whole = drawn(kind.init, 0, 1 << 14);
    for (std::size_t quad = 0; 4 * quad < whole.size(); ++quad) {
      const auto one = kind.init.kind == Init::Kind::normal ? one_quad<Init::Kind::normal>(kind.init, quad)
                       : kind.init.kind == Init::Kind::trunc_normal
                           ? one_quad<Init::Kind::trunc_normal>(kind.init, quad)
                           : one_quad<Init::Kind::uniform>(kind.init, quad);
      ASSERT_TRUE(same_bits(one.v, whole.data() + 4 * quad, 4)) << kind.name << " " << quad;
    }
  }
}

// The hashes were recorded once; a fused multiply-add, another compiler or a libm function could change the bits.
TEST(Draws, EqualTheRecordedBits) {
  for (const auto& kind : kKinds) {
    const auto values = drawn(kind.init, 0, 1 << 16);
    const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    EXPECT_EQ(random::hash(bytes), kind.bits) << kind.name << " " << std::hex << random::hash(bytes);
  }
}

TEST(Draws, SlicesThreadsAndDtypesAgree) {
  const std::vector<std::int64_t> shape{37, 1031, 31};  // above a chunk of 2^20 elements
  const auto whole = Placement::whole("layer.weight", shape);
  std::vector<Placement> slices;
  for (std::int64_t dim = 0; dim < 3; ++dim) {
    auto p = whole;
    p.cut(dim, {{1, 8}, {9, 10}, {15, 31}});
    slices.push_back(p);
    p.flat = Range{13, 27001};
    slices.push_back(p);
  }
  slices.push_back(Placement(whole).cut(2, {{2, 5}, {6, 31}}).cut(1, {{1, 8}, {15, 31}}));
  auto flat = whole;
  flat.flat = Range{777, 1'100'001};
  slices.push_back(flat);
  flat.flat = Range{5, 5};
  slices.push_back(flat);
  const int threads = at::get_num_threads();
  for (const auto& kind : kKinds) {
    at::set_num_threads(1);
    const auto full = draw(kind.init, 42, whole, at::kFloat, at::kCPU);
    at::set_num_threads(3);
    EXPECT_TRUE(draw(kind.init, 42, whole, at::kFloat, at::kCPU).equal(full)) << kind.name;
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      EXPECT_TRUE(draw(kind.init, 42, whole, dtype, at::kCPU).equal(full.to(dtype))) << kind.name;
      for (const auto& p : slices) {
        const auto slice = draw(kind.init, 42, p, dtype, at::kCPU);
        EXPECT_EQ(slice.sizes().vec(), p.local_shape());
        EXPECT_TRUE(slice.equal(p.slice(full).to(dtype))) << kind.name << " " << &p - slices.data() << " " << dtype;
      }
    }
    const auto buffer = at::zeros({flat.full_numel()}, at::kFloat);
    draw_into(kind.init, 42, slices[1], buffer.narrow(0, 3, slices[1].local_numel()));
    EXPECT_TRUE(buffer.narrow(0, 3, slices[1].local_numel()).equal(slices[1].slice(full)));
    EXPECT_EQ(buffer.narrow(0, 0, 3).abs().sum().item<float>(), 0);
  }
  at::set_num_threads(threads);
}

// The Box-Muller transform and the inverse distribution function in double, by libm, from the same words.
TEST(Draws, EqualTheFormulasInDouble) {
  const auto normals = drawn(Init::normal(0, 1), 0, 1 << 16), cut = drawn(Init::trunc_normal(0, 1), 0, 1 << 16);
  for (std::size_t i = 0; i < normals.size(); ++i) {
    const auto bits = random::philox(kKey, 0, i / 4);
    const auto* pair = bits.v + i % 4 / 2 * 2;
    const auto for_radius = static_cast<float>((pair[0] >> 1) | 1);  // rounded to single precision, as it is drawn
    const double radius = std::sqrt(-2 * std::log(static_cast<double>(for_radius) / 2147483648.0));
    const double angle = 2 * M_PI * static_cast<double>(pair[1]) / 4294967296.0;
    EXPECT_NEAR(normals[i], radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle)), 5e-7 * std::max(radius, 1e-3))
        << i;
    const double low = std::erfc(M_SQRT2) / 2, u = (static_cast<double>(bits.v[i % 4]) + 0.5) / 4294967296.0;
    const double below = std::fmod(u + 0.5, 1.0);  // the word is taken as a signed number
    EXPECT_NEAR(std::erfc(-cut[i] / M_SQRT2) / 2, low + (1 - 2 * low) * below, 3e-7) << i;
    EXPECT_LE(std::abs(cut[i]), 2);
  }
}

/// The Kolmogorov-Smirnov distance between a sample and a law, times the root of the sample's size: above 1.95 in one
/// sample of a thousand.
template <class Law>
double distance_to(std::vector<float> sample, Law law) {
  std::sort(sample.begin(), sample.end());
  const auto n = static_cast<double>(sample.size());
  double worst = 0;
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const double below = law(static_cast<double>(sample[i])), rank = static_cast<double>(i);
    worst = std::max({worst, below - rank / n, (rank + 1) / n - below});
  }
  return worst * std::sqrt(n);
}

TEST(Draws, FollowTheirDistribution) {
  const auto phi = [](double z) { return std::erfc(-z / M_SQRT2) / 2; };
  constexpr std::int64_t kCount = 1 << 20;
  EXPECT_LT(distance_to(drawn(Init::normal(0, 1), 0, kCount), phi), 1.95);
  EXPECT_LT(distance_to(drawn(Init::uniform(0, 1), 0, kCount), [](double x) { return x; }), 1.95);
  EXPECT_LT(distance_to(drawn(Init::trunc_normal(0, 1), 0, kCount),
                        [&](double z) { return (phi(z) - phi(-2)) / (phi(2) - phi(-2)); }),
            1.95);
  // Neighbours, also the two numbers of one pair of words, are not correlated; nor are their squares.
  const auto z = drawn(Init::normal(0, 1), 0, kCount);
  for (const std::size_t lag : {1, 2, 3, 4, 128}) {
    double product = 0, of_squares = 0;
    for (std::size_t i = lag; i < z.size(); ++i) {
      const double a = z[i], b = z[i - lag];
      product += a * b;
      of_squares += (a * a - 1) * (b * b - 1) / 2;
    }
    EXPECT_LT(std::abs(product) / 1024, 4) << lag;  // of variance kCount
    EXPECT_LT(std::abs(of_squares) / 1024, 4) << lag;
  }
}

// The ends of a word's range: finite, in the interval, and no larger than the header says.
TEST(Draws, EndsOfTheRangeAreFinite) {
  for (const std::uint32_t word : {0U, 1U, 2U, 0x7FFFFFFFU, 0x80000000U, 0xFFFFFFFEU, 0xFFFFFFFFU}) {
    for (const std::uint32_t angle : {0U, 0x1FFFFFFFU, 0x20000000U, 0x80000000U, 0xE0000000U, 0xFFFFFFFFU}) {
      const auto pair = detail::normal(word, angle);
      EXPECT_LE(std::hypot(pair.first, pair.second), 6.56) << word << " " << angle;
    }
    EXPECT_LE(std::abs(detail::trunc_normal(word)), 2) << word;
    EXPECT_GT(detail::uniform(word), 0) << word;
    EXPECT_LT(detail::uniform(word), 1) << word;
  }
}

}  // namespace
}  // namespace trireme::shard
