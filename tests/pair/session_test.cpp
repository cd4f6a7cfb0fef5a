// SPDX-License-Identifier: Apache-2.0
#include "pair/session.hpp"
#include <cuda_bf16.h>

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

namespace aisp::pair {
namespace {

class Everything final : public Workload {
 public:
  explicit Everything(Setup& setup)
      : scaled{setup.scaled(1000, 64)},
        shape{setup.shape(8192, 256)},
        reals{setup.input<float>(1000, uniform(-2, 3))},
        halves{setup.input<__nv_bfloat16>(1000, normal(0, 1))},
        keys{setup.input<std::uint32_t>(1000, integers(10, 20))},
        made{setup.input<int>(10, HostFill<int>{[](std::span<int> values, std::uint64_t seed) {
                                for (std::size_t i = 0; i < values.size(); ++i)
                                  values[i] = static_cast<int>(i) + static_cast<int>(seed % 100);
                              }})},
        state{setup.inout<double>(100, sequence(5, 2))},
        out{setup.output<float>(100)},
        file{setup.file("tokens.bin", 100003)},
        team{setup.threads(3)} {}
  Cost cost() const override { return {}; }
  void nothing(Launch&) {}

  std::size_t scaled, shape;
  Input<float> reals;
  Input<__nv_bfloat16> halves;
  Input<std::uint32_t> keys;
  Input<int> made;
  InOut<double> state;
  Output<float> out;
  FileInput file;
  ThreadTeam& team;
};

constexpr Pair pair_of_everything{.teaches = "test",
                                  .make = make<Everything>,
                                  .baseline = {.name = "a", .run = call<&Everything::nothing>},
                                  .optimized = variants({{.name = "b", .run = call<&Everything::nothing>}}),
                                  .device = Device::host};

Everything& workload(Session& session) { return static_cast<Everything&>(session.workload()); }

struct Point {
  float x, y;
};

template <Role role>
class HasPoints final : public Workload {
 public:
  explicit HasPoints(Setup& setup) {
    if constexpr (role == Role::output) setup.output<Point>(10, {.name = "points"});
    else if constexpr (role == Role::inout) setup.inout<Point>(10, HostFill<Point>{[](std::span<Point>, std::uint64_t) {}});
    else setup.input<Point>(10, HostFill<Point>{[](std::span<Point>, std::uint64_t) {}});
  }
  Cost cost() const override { return {}; }
  void nothing(Launch&) {}
};

template <Role role>
constexpr Pair pair_of_points{.teaches = "test",
                              .make = make<HasPoints<role>>,
                              .baseline = {.name = "a", .run = call<&HasPoints<role>::nothing>},
                              .optimized = variants({{.name = "b", .run = call<&HasPoints<role>::nothing>}}),
                              .device = Device::host};

TEST(Session, ResultsAreNumbersBecauseRecordsHaveNoReference) {
  EXPECT_NO_THROW((Session{pair_of_points<Role::input>, {}}));
  EXPECT_THROW((Session{pair_of_points<Role::output>, {}}), std::logic_error);
  EXPECT_THROW((Session{pair_of_points<Role::inout>, {}}), std::logic_error);
}

TEST(Session, BuffersHoldWhatTheirHandlesSay) {
  Session session{pair_of_everything, {.seed = 9}};
  Everything& all = workload(session);
  for (std::size_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(static_cast<double>(all.reals[i]), all.reals.host(i));
    EXPECT_EQ(static_cast<float>(all.halves[i]), all.halves.host(i));
    EXPECT_EQ(all.keys[i], all.keys.host(i));
    EXPECT_GE(all.reals[i], -2);
    EXPECT_LT(all.reals[i], 3);
    EXPECT_TRUE(all.keys[i] >= 10 && all.keys[i] <= 20);
  }
  EXPECT_EQ(all.made[3], all.made.host(3));
  EXPECT_EQ(all.state[7], 19);
  EXPECT_TRUE(std::isnan(all.out[0]));  // poisoned
}

TEST(Session, RefillGivesNewValuesAndTheSameSeedTheSameOnes) {
  Session session{pair_of_everything, {.seed = 9}};
  Everything& all = workload(session);
  const float before = all.reals[17];
  const std::uint64_t digest = session.digest_inputs();
  session.refill(10);
  EXPECT_NE(all.reals[17], before);
  EXPECT_NE(session.digest_inputs(), digest);
  session.refill(9);
  EXPECT_EQ(all.reals[17], before);
  EXPECT_EQ(session.digest_inputs(), digest);
}

TEST(Session, HiddenContentsAreNotTold) {
  Session session{pair_of_everything, {.seed = 9}};
  Everything& all = workload(session);
  {
    const Session::Hidden hidden{session, pair_of_everything.baseline};
    EXPECT_THROW(all.reals.host(3), std::logic_error);
    EXPECT_THROW(all.made.host(3), std::logic_error);
    EXPECT_THROW(all.state.initial(3), std::logic_error);
    EXPECT_THROW(all.file.word(3), std::logic_error);
    session.refill_variable(10);
    EXPECT_THROW(all.reals.host(3), std::logic_error);
  }
  EXPECT_EQ(static_cast<double>(all.reals[3]), all.reals.host(3));
  EXPECT_EQ(all.made[3], all.made.host(3));
}

// A run that reads what the handles tell.
class Asks final : public Workload {
 public:
  explicit Asks(Setup& setup)
      : varying{setup.input<float>(8, uniform(0, 1))},
        table{setup.input<float>(8, uniform(0, 1), {.constant = true})},
        out{setup.output<float>(1)} {}
  Cost cost() const override { return {}; }
  void of_varying(Launch&) { out[0] = static_cast<float>(varying.host(3)); }
  void of_table(Launch&) { out[0] = static_cast<float>(table.host(3)); }

  Input<float> varying, table;
  Output<float> out;
};
constexpr Pair asking_pair{.teaches = "test",
                           .make = make<Asks>,
                           .baseline = {.name = "a", .run = call<&Asks::of_varying>, .reset = call<&Asks::of_varying>},
                           .optimized = variants({{.name = "b", .run = call<&Asks::of_table>}}),
                           .controls = variants({{.name = "c", .run = call<&Asks::of_varying>}}),
                           .device = Device::host};

TEST(Session, OnlyControlsMayAskForInputsThatChange) {
  Session session{asking_pair, {}};
  EXPECT_THROW(session.submit(asking_pair.baseline), std::logic_error);
  EXPECT_THROW(session.reset(asking_pair.baseline), std::logic_error);
  EXPECT_NO_THROW(session.submit(asking_pair.optimized[0]));
  EXPECT_NO_THROW(session.submit(asking_pair.controls[0]));
  const Asks& asks = static_cast<Asks&>(session.workload());
  EXPECT_EQ(static_cast<double>(asks.varying[3]), asks.varying.host(3)) << "afterwards handles tell again";
}

TEST(Session, OtherInputsTakeTheirPlaceForAWhile) {
  Session session{pair_of_everything, {.seed = 9}};
  Everything& all = workload(session);
  const float real = all.reals[17];
  const int made = all.made[3];
  const double state = all.state[3];
  session.show_other_inputs();
  EXPECT_NE(all.reals[17], real);
  EXPECT_NE(all.made[3], made);
  EXPECT_EQ(all.state[3], state);
  session.restore_inputs();
  EXPECT_EQ(all.reals[17], real);
  EXPECT_EQ(all.made[3], made);
  EXPECT_EQ(static_cast<double>(all.reals[17]), all.reals.host(17));
}

TEST(Session, InoutsAreRestored) {
  Session session{pair_of_everything, {}};
  Everything& all = workload(session);
  all.state[3] = -1;
  session.restore_inouts();
  EXPECT_EQ(all.state[3], all.state.initial(3));
}

TEST(Session, FilesHoldTheirWordsAndVanish) {
  std::filesystem::path path;
  {
    Session session{pair_of_everything, {}};
    const FileInput& file = workload(session).file;
    path = file.path();
    EXPECT_EQ(std::filesystem::file_size(path), 100003u);
    std::ifstream in{path, std::ios::binary};
    in.seekg(8 * 500);
    std::uint64_t word = 0;
    in.read(reinterpret_cast<char*>(&word), sizeof word);
    EXPECT_EQ(word, file.word(500));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path.parent_path()));
}

// Its file leads to the device on which nothing has room.
class OnFullDisk final : public Workload {
 public:
  explicit OnFullDisk(Setup& setup) : file{setup.file("tokens.bin", 100003)} {
    std::ofstream{std::filesystem::path{setup.scratch_directory()} / "another file"} << "left by the constructor";
    std::filesystem::create_symlink("/dev/full", file.path());
  }
  Cost cost() const override { return {}; }
  void nothing(Launch&) {}

  FileInput file;
};

TEST(Session, FullDiskIsToldInOneLineAndNothingIsLeft) {
  constexpr Pair pair{.teaches = "test",
                      .make = make<OnFullDisk>,
                      .baseline = {.name = "a", .run = call<&OnFullDisk::nothing>},
                      .optimized = variants({{.name = "b", .run = call<&OnFullDisk::nothing>}}),
                      .device = Device::host};
  const base::ScratchDirectory parent;
  try {
    Session session{pair, {.scratch_parent = parent.path()}};
    ADD_FAILURE() << "the file was written";
  } catch (const Unsupported& reason) {
    const std::string text = reason.what();
    EXPECT_NE(text.find("no room for " + parent.path().string()), std::string::npos) << text;
    EXPECT_NE(text.find("--artifacts-dir"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
  EXPECT_TRUE(std::filesystem::is_empty(parent.path()));
}

TEST(Session, SizesFollowScaleAndShape) {
  Session full{pair_of_everything, {}};
  EXPECT_EQ(workload(full).scaled, 960u);
  EXPECT_EQ(workload(full).shape, 8192u);
  Session tiny{pair_of_everything, {.scale = 0.001, .small_shape = true}};
  EXPECT_EQ(workload(tiny).scaled, 64u);  // at least one multiple
  EXPECT_EQ(workload(tiny).shape, 256u);
}

TEST(Session, RedZonesSeeWritesOnBothSides) {
  Session session{pair_of_everything, {}};
  Everything& all = workload(session);
  EXPECT_TRUE(session.damaged_red_zones().empty());
  all.out[-1] = 0;
  all.out[100] = 0;
  ASSERT_EQ(session.damaged_red_zones().size(), 1u);
  session.refill(1);
  EXPECT_TRUE(session.damaged_red_zones().empty());
}

TEST(Patterns, NormalHasItsMeanAndDeviation) {
  double sum = 0, squares = 0;
  constexpr int count = 200000;
  for (int i = 0; i < count; ++i) {
    const double value = pattern_value<double>(normal(3, 2), 42, static_cast<std::uint64_t>(i));
    sum += value;
    squares += value * value;
  }
  const double mean = sum / count;
  EXPECT_NEAR(mean, 3, 0.02);
  EXPECT_NEAR(std::sqrt(squares / count - mean * mean), 2, 0.02);
}

std::uint64_t without_shift(std::uint64_t x, int bits) {
  std::uint64_t z = x;
  for (int known = bits; known < 64; known += bits) z = x ^ (z >> bits);
  return z;
}

// Returns the seed from which random_bits() makes `bits` at `index`.
std::uint64_t seed_of(std::uint64_t bits, std::uint64_t index) {
  std::uint64_t z = without_shift(bits, 31) * 0x319642B2D24D8EC3ull;
  z = without_shift(z, 27) * 0x96DE1B173F119089ull;
  return without_shift(z, 30) - (index + 1) * 0x9E3779B97F4A7C15ull;
}

TEST(Patterns, WideIntegersAndWordsOfFilesDoNotTellTheirSeed) {
  ASSERT_EQ(seed_of(random_bits(42, 7), 7), 42u) << "one round can be run backwards";
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();
  EXPECT_NE(seed_of(pattern_value<std::uint64_t>(integers(0, -1), 42, 7), 7), 42u);
  EXPECT_NE(seed_of(static_cast<std::uint64_t>(pattern_value<std::int64_t>(integers(least, most), 42, 7)) -
                        static_cast<std::uint64_t>(least),
                    7),
            42u);
  EXPECT_NE(seed_of(detail::file_word(42, 7), 7), 42u);
}

TEST(Patterns, IntegersReachBothEndsEvenly) {
  int counts[5] = {};
  for (std::uint64_t i = 0; i < 50000; ++i) ++counts[pattern_value<int>(integers(-2, 2), 7, i) + 2];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 400);
}

}  // namespace
}  // namespace aisp::pair
