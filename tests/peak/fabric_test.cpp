// SPDX-License-Identifier: Apache-2.0
// Made-up machines: how collectives are counted, which GPU is called slow, and what is shown of it.
#include "peak/fabric/fabric.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"
#include "peak/kernels.hpp"
#include "peak/parts.hpp"
#include "peak/table.hpp"

namespace aisp::peak {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Rates of equal GPUs differ by such parts: half of a percent for memory and links, more for products, whose clocks differ.
struct Spread {
  double memory = 0.005, product = 0.012, link = 0.005, latency = 0.012;
};

Fabric machine_of(int gpus, std::mt19937& random, const Spread& spread = {}, const std::string& model = "NVIDIA X") {
  const auto near = [&](double value, double part) { return value * std::normal_distribution<>{1, part}(random); };
  Fabric fabric;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    Figure bf16{.id = "bf16", .value = near(800e12, spread.product), .how = "cuBLASLt"};
    bf16.sustained = Sustained{.value = near(650e12, spread.product), .duration_s = 2};
    fabric.gpus.push_back({.ordinal = gpu,
                           .uuid = "GPU-" + std::to_string(gpu),
                           .name = model,
                           .figures = {{.id = "hbm_read", .value = near(3.2e12, spread.memory)},
                                       {.id = "hbm_copy", .value = near(3.0e12, spread.memory)},
                                       bf16}});
    for (int to = 0; to < gpus; ++to)
      if (to != gpu)
        fabric.pairs.push_back({.from = gpu,
                                .to = to,
                                .path = "NV18",
                                .direct = true,
                                .bytes_s = near(390e9, spread.link),
                                .both_bytes_s = near(750e9, spread.link),
                                .latency_s = near(700e-9, spread.latency)});
  }
  return fabric;
}

std::vector<std::string> lines_of(const Judged& judged) {
  std::vector<std::string> lines = judged.unclear;
  for (const Slow& slow : judged.slow) lines.push_back(line_of(slow));
  return lines;
}

Figure& figure(Fabric& fabric, int gpu, const std::string& id) {
  for (Figure& each : fabric.gpus.at(static_cast<std::size_t>(gpu)).figures)
    if (each.id == id) return each;
  throw std::logic_error{id};
}

TEST(Collectives, AreCountedAsNcclTestsCountThem) {
  // nccl-tests' doc/PERFORMANCE.md: 2 (n - 1) / n for an all-reduce, (n - 1) / n for the others.
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 2), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 8), 1.75);
  for (const Collective other : {Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all}) {
    EXPECT_DOUBLE_EQ(bus_factor(other, 2), 0.5);
    EXPECT_DOUBLE_EQ(bus_factor(other, 8), 0.875);
  }
  const CollectiveTime time{.operation = Collective::all_reduce, .bytes = 1e9, .seconds = 4e-3};
  EXPECT_DOUBLE_EQ(time.algorithm_bytes_s(), 250e9);
  EXPECT_DOUBLE_EQ(time.bus_bytes_s(8), 437.5e9);
}

// By the definition of each operation, from what each rank sends: hash(i) + rank, here with i itself for the hash.
TEST(Collectives, TheCheckExpectsWhatTheOperationsMean) {
  constexpr std::size_t chunk = 4;
  constexpr int ranks = 3;
  const auto sent = [](int rank, std::size_t i) { return static_cast<double>(i) + rank; };
  const auto sum = [&](std::size_t i) { return sent(0, i) + sent(1, i) + sent(2, i); };
  for (int rank = 0; rank < ranks; ++rank) {
    const std::size_t own = static_cast<std::size_t>(rank) * chunk;
    const auto expected = [&](Collective operation, std::size_t i) {
      const Expected e = expected_of(operation, chunk, rank, ranks);
      return static_cast<double>(e.scale) * static_cast<double>(e.first + i % e.chunk) + static_cast<double>(e.offset) +
             static_cast<double>(i / e.chunk);
    };
    for (std::size_t i = 0; i < chunk * ranks; ++i) {
      const int peer = static_cast<int>(i / chunk);
      EXPECT_EQ(expected(Collective::all_reduce, i), sum(i));
      EXPECT_EQ(expected(Collective::all_gather, i), sent(peer, i % chunk));
      EXPECT_EQ(expected(Collective::all_to_all, i), sent(peer, own + i % chunk));
    }
    for (std::size_t i = 0; i < chunk; ++i) EXPECT_EQ(expected(Collective::reduce_scatter, i), sum(own + i));
  }
}

TEST(SlowGpus, NoneOfEqualOnesIsNamedInAThousandMachines) {
  std::mt19937 random{1};
  for (int machine = 0; machine < 1000; ++machine) {
    const int gpus = 2 + machine % 7;
    const Judged judged = judge(machine_of(gpus, random), {});
    ASSERT_THAT(lines_of(judged), IsEmpty()) << gpus << " GPUs, machine " << machine;
  }
}

TEST(SlowGpus, OfThoseThatDifferTwiceAsMuchOneIsNamedInOneMachineOfAHundredAtMost) {
  std::mt19937 random{2};
  int named = 0;
  for (int machine = 0; machine < 1000; ++machine)
    named += judge(machine_of(8, random, {0.01, 0.024, 0.01, 0.024}), {}).slow.empty() ? 0 : 1;
  EXPECT_LE(named, 10);
}

TEST(SlowGpus, AreFoundAmongThreeToEight) {
  std::mt19937 random{3};
  for (int gpus = 3; gpus <= 8; ++gpus) {
    Fabric fabric = machine_of(gpus, random);
    figure(fabric, 1, "hbm_read").value *= 0.84;
    figure(fabric, 2, "bf16").sustained->value *= 0.85;
    const std::vector<std::string> lines = lines_of(judge(fabric, {}));
    EXPECT_THAT(lines, SizeIs(2)) << gpus;
    EXPECT_THAT(lines, Contains(HasSubstr("GPU 1 is slow: HBM read 2."))) << gpus;
    EXPECT_THAT(lines,
                Contains(testing::ContainsRegex(
                    "GPU 2 is slow: BF16 product, sustained .* 1[3-8] % below .*[(]the median of [3-8][)], [0-9.]+ deviations")));
  }
}

TEST(SlowGpus, ASlowPortIsTheGpusAndASlowPathThePairs) {
  std::mt19937 random{4};
  for (int gpus = 3; gpus <= 8; ++gpus) {
    Fabric port = machine_of(gpus, random), path = machine_of(gpus, random);
    for (FabricPair& pair : port.pairs)
      if (pair.from == 1 || pair.to == 1) pair.bytes_s *= 0.5;
    EXPECT_THAT(lines_of(judge(port, {})),
                ElementsAre(HasSubstr("GPU 1 is slow: copies to other GPUs"), HasSubstr("GPU 1 is slow: copies from other GPUs")))
        << gpus;
    for (FabricPair& pair : path.pairs)
      if (pair.from == 2 && pair.to == 0) pair.latency_s *= 2;
    EXPECT_THAT(lines_of(judge(path, {})), ElementsAre(testing::ContainsRegex("GPU 2 to GPU 0 is slow: load .* above (69|7)")))
        << gpus;
  }
}

// Four GPUs at two sockets: the far paths are slower, and no path is slow.
TEST(SlowGpus, PathsOfOtherKindsAreNotCompared) {
  std::mt19937 random{5};
  Fabric fabric = machine_of(6, random);
  for (FabricPair& pair : fabric.pairs)
    if ((pair.from < 4) != (pair.to < 4)) {
      pair.path = "SYS";
      pair.bytes_s *= 0.1;
      pair.latency_s *= 3;
    }
  EXPECT_THAT(lines_of(judge(fabric, {})), IsEmpty());
}

TEST(SlowGpus, OfTwoNothingTellsWhichUntilPeersAreGiven) {
  std::mt19937 random{6};
  Fabric two = machine_of(2, random);
  figure(two, 1, "hbm_copy").value *= 0.9;
  EXPECT_THAT(lines_of(judge(two, {})), ElementsAre(HasSubstr("GPU 0 and GPU 1 differ by 9 % in HBM copy")));
  EXPECT_THAT(lines_of(judge(two, {machine_of(2, random)})), ElementsAre(HasSubstr("GPU 1 is slow: HBM copy")));
  EXPECT_THAT(lines_of(judge(two, {machine_of(8, random, {}, "NVIDIA Y")})), ElementsAre(HasSubstr("differ by")))
      << "peers of another model";
}

TEST(SlowGpus, OfTwoARecordedModelTells) {
  std::mt19937 random{7};
  Fabric two = machine_of(2, random, {}, "NVIDIA H200");
  for (FabricGpu& gpu : two.gpus)
    gpu.figures = {{.id = "hbm_read", .value = 4.58e12}, {.id = "hbm_copy", .value = 4.26e12}, {.id = "bf16", .value = 792e12}};
  EXPECT_THAT(lines_of(judge(two, {})), IsEmpty());
  figure(two, 0, "hbm_read").value = 4.1e12;
  EXPECT_THAT(
      lines_of(judge(two, {})),
      ElementsAre(HasSubstr("GPU 0 is slow: HBM read 4.10 TB/s, 10 % below 4.57 TB/s (recorded on an H200), 12.9 deviations")));
}

Fabric measured() {
  std::mt19937 random{8};
  Fabric fabric = machine_of(2, random);
  fabric.nccl = "2.28.3";
  fabric.pairs[1].direct = false;
  fabric.pairs[1].latency_s = 0;
  for (const double bytes : {1024.0, 1048576.0})
    fabric.times.push_back({.operation = Collective::all_gather, .bytes = bytes, .seconds = bytes / 100e9});
  fabric.times[1].wrong = 3;
  return fabric;
}

PeakRecord record_of(const Fabric& fabric) {
  return {.key = {.of = "GPU-1,GPU-2", .model = "NVIDIA X", .driver = "580"},
          .measured_utc = "2026-11-28T12:00:00Z",
          .fabric = fabric};
}

TEST(FabricTables, ShowMatricesAndCollectives) {
  const Fabric fabric = measured();
  EXPECT_EQ(heading(record_of(fabric)), "2 x NVIDIA X, driver 580, NCCL 2.28.3; measured 2026-11-28T12:00:00Z");
  const std::vector<FabricTable> tables = fabric_tables(fabric);
  ASSERT_THAT(tables, SizeIs(5));
  EXPECT_THAT(tables[1].rows[0], ElementsAre("", "GPU0", "GPU1"));
  EXPECT_THAT(tables[1].rows[1], ElementsAre("GPU0", "-", testing::MatchesRegex("3[89][0-9][.][0-9]")));
  EXPECT_THAT(tables[1].rows[2], ElementsAre("GPU1", HasSubstr("(through the host)"), "-"));
  EXPECT_EQ(tables[3].rows[2][1], "-") << "no access, no latency";
  EXPECT_THAT(tables[4].rows[2], ElementsAre("all_gather", "1 MiB", "10.5 us", "100.00", "50.00", "3"));
  EXPECT_THAT(wrong_results(fabric), ElementsAre("all_gather gave wrong elements: 3 of 1 MiB"));
  EXPECT_THAT(fabric_values(fabric), Contains(ElementsAre("all_gather_busbw", "", "", "1048576", "5e+10", "B/s")));
  EXPECT_THAT(fabric_values(fabric), Contains(ElementsAre("copy", "1", "0", "", testing::_, "B/s")));
  EXPECT_THAT(fabric_tables(Fabric{.gpus = fabric.gpus}), SizeIs(1)) << "without pairs and NCCL";
}

TEST(FabricJson, ComesBackAndRefusesWhatNoMeasurementGives) {
  const nlohmann::json object = record_json(record_of(measured()));
  EXPECT_EQ(object["times"][0]["bus_bytes_s"], 50e9);
  EXPECT_EQ(record_json(read_record(object, Subject::fabric)), object);
  for (const auto& [pointer, value] : std::vector<std::pair<std::string, nlohmann::json>>{{"/times/0/time_s", 0},
                                                                                          {"/pairs/0/bytes_s", -1},
                                                                                          {"/times/0/operation", "gossip"},
                                                                                          {"/gpus/0/figures/0/value", -1},
                                                                                          {"/schema_version", 9}}) {
    nlohmann::json broken = object;
    broken[nlohmann::json::json_pointer{pointer}] = value;
    EXPECT_THROW(read_record(broken, Subject::fabric), base::Error) << pointer;
  }
}

}  // namespace
}  // namespace aisp::peak
