// SPDX-License-Identifier: Apache-2.0
// Runs against runs, made up: how often identical code looks worse, and what is told of runs of two machines.
#include "evidence/comparison/comparison.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "places.hpp"

namespace aisp::evidence {
namespace {

using testing::HasSubstr;

constexpr int pairs = 10, variants = 3, samples = 25;

// The spread between processes of one code, as standard deviations.
struct ComparedWorld {
  double ratio = 0.003;   // of a variant's time, apart from what all variants of the pair share
  double clock = 0.006;   // of all times of a pair
  double sample = 0.004;  // of a sample
  double loss = 1;        // the last variant of every pair takes so much longer
  bool host = false;      // pairs that the host decides
};

Manifest compared_machine(const std::string& gpu = "NVIDIA H200", int cpus = 16) {
  Manifest manifest{.cpu = "Some CPU", .virtualization = "kvm", .cpus_usable = cpus, .numa_nodes = 1};
  manifest.memory_bytes = std::uint64_t{128} << 30;
  manifest.gpus = {{.ordinal = 0, .name = gpu, .uuid = "GPU-1"}};
  return manifest;
}

class Process {
 public:
  Process(const ComparedWorld& world, std::uint64_t seed) : world_{world}, random_{seed} {}

  RunRecord run() {
    RunRecord run{.folder = "run", .manifest = compared_machine()};
    for (int i = 0; i < pairs; ++i) run.pairs.push_back(pair(i));
    return run;
  }

 private:
  double around_one(double spread) { return std::exp(spread * normal_(random_)); }

  VariantResult variant(int number, double median_ms) {
    VariantResult result{.name = "v" + std::to_string(number)};
    result.timing.emplace();
    for (int i = 0; i < samples; ++i) result.timing->raw_times_ms.push_back(median_ms * around_one(world_.sample));
    result.timing->summary.median = median_range(result.timing->raw_times_ms).value;
    result.prepare_ms = 0.02 * around_one(0.5);
    result.gpu_busy_ms = median_ms * (1 - 0.1 * std::abs(normal_(random_)));
    result.memory = {.device_peak_bytes = 1 << 20, .host_peak_rss_bytes = static_cast<std::uint64_t>(1e8 * around_one(0.1))};
    Metric metric{.name = "rate", .unit = "1/s", .better = Direction::higher};
    for (const double time : result.timing->raw_times_ms) metric.raw.push_back(1 / time);
    result.metrics = {metric, {.name = "reading", .unit = "J", .better = Direction::lower}};
    result.metrics[1].summary.median = around_one(0.2);
    result.energy = Energy{.median_j = median_ms, .low_j = median_ms * 0.99, .high_j = median_ms * 1.01};
    return result;
  }

  PairResult pair(int number) {
    PairResult pair{.target = "ch01:p" + std::to_string(number), .chapter = "ch01", .name = "p" + std::to_string(number)};
    pair.device = Device::gpu;
    pair.host_dependent = world_.host;
    pair.gpus = {"GPU-1"};
    const double shared = around_one(world_.clock);
    for (int i = 0; i < variants; ++i) {
      const double loss = i + 1 == variants ? world_.loss : 1;
      pair.variants.push_back(variant(i, 4.0 / (1 + i) * shared * around_one(world_.ratio) * loss));
      if (i == 0) continue;
      const double ratio = pair.variants[0].timing->summary.median / pair.variants.back().timing->summary.median;
      pair.variants.back().speedup = Speedup{ratio, ratio * 0.998, ratio * 1.002, Verdict::faster};
    }
    pair.variants[0].role = VariantRole::baseline;
    return pair;
  }

  const ComparedWorld& world_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_{0, 1};
};

bool is_red(const RunComparison& comparison) {
  return std::any_of(comparison.metrics.begin(), comparison.metrics.end(),
                     [](const MetricChange& metric) { return metric.is_regression; });
}

// How many of all ordered comparisons of six runs end red, over `worlds` such six.
int red_orders(const ComparedWorld& world, std::uint64_t worlds) {
  int red = 0;
  for (std::uint64_t number = 0; number < worlds; ++number) {
    std::vector<RunRecord> runs;
    for (std::uint64_t i = 0; i < 6; ++i) runs.push_back(Process{world, number * 6 + i + 1}.run());
    for (std::size_t a = 0; a < runs.size(); ++a)
      for (std::size_t b = 0; b < runs.size(); ++b)
        if (a != b) red += is_red(compare_runs(runs[a], runs[b], 0.05));
  }
  return red;
}

TEST(IdenticalCode, IsQuietInAllThirtyOrdersOfSixRuns) {
  EXPECT_EQ(red_orders({}, 10), 0) << "of 300; pairs that wait for the GPU alone";
  EXPECT_EQ(red_orders({.ratio = 0.25, .host = true}, 5), 0) << "of 150; pairs that the host decides";
}

TEST(IdenticalCode, SaysWhereItDiffersAllTheSame) {
  const ComparedWorld world;
  const RunComparison comparison = compare_runs(Process{world, 1}.run(), Process{world, 2}.run(), 0.05);
  const auto told = std::count_if(comparison.metrics.begin(), comparison.metrics.end(), [](const MetricChange& metric) {
    return metric.metric == "prepare" && metric.change != Change::same && metric.detail == "single readings";
  });
  EXPECT_GT(told, 10);
}

// The tree's own recorded runs as results, by run: speedups of pairs that wait for the GPU alone.
struct RecordedSuites {
  std::map<std::string, RunRecord> runs;
  std::map<std::string, std::vector<double>> logs;  // of a variant's recorded speedups, by code
  ExpectationFolder folder{source_folder() / "expectations"};

  RecordedSuites(const std::string& hardware, const std::string& gpu) {
    for (const Expectations& file : read_all_expectations(source_folder() / "expectations")) {
      if (file.hardware != hardware) continue;
      for (const auto& [name, pair] : file.pairs)
        for (const RecordedRun& recorded : pair.runs) {
          if (pair.host_decides) continue;
          RunRecord& run = runs[recorded.run_id + recorded.commit + recorded.machine];
          run.manifest = compared_machine(gpu);
          PairResult& result = run.pairs.emplace_back(PairResult{.target = file.chapter + ":" + name,
                                                                 .chapter = file.chapter,
                                                                 .name = name,
                                                                 .source_digest = recorded.source_digest,
                                                                 .device = Device::gpu,
                                                                 .gpus = {"GPU-1"}});
          for (const auto& [variant, values] : recorded.variants) {
            VariantResult& added = result.variants.emplace_back(VariantResult{.name = variant});
            added.speedup = Speedup{values.speedup, values.speedup_low, values.speedup_high, Verdict::faster};
            logs[result.target + " " + variant + recorded.source_digest].push_back(std::log(values.speedup));
          }
        }
    }
  }
};

// The standard deviation, where there are two values.
std::optional<double> deviation_of(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (count - 1));
}

std::size_t variants_of(const RunRecord& run) {
  std::size_t variants = 0;
  for (const PairResult& pair : run.pairs) variants += pair.variants.size();
  return variants;
}

// Equal code alone is compared.
RunRecord of_equal_code(const RunRecord& run, const RunRecord& other) {
  RunRecord equal = run;
  std::erase_if(equal.pairs, [&](const PairResult& pair) {
    return std::ranges::none_of(
        other.pairs, [&](const PairResult& of) { return of.target == pair.target && of.source_digest == pair.source_digest; });
  });
  return equal;
}

bool is_told_worse(const RunComparison& comparison, const std::string& target, const std::string& variant) {
  return std::ranges::any_of(comparison.metrics, [&](const MetricChange& metric) {
    return metric.is_regression && metric.target == target && metric.variant == variant;
  });
}

struct Planted {
  int draws = 0, found = 0;
};

// Takes 5 % from one variant's speedup, at random, where recorded runs of its code differ by less than `spread` (a standard
// deviation of logarithms).
Planted plant(RecordedSuites& recorded, const RunRecord& before, RunRecord& after, double spread, std::mt19937_64& random) {
  Planted planted;
  for (int draw = 0; draw < 40; ++draw) {
    PairResult& pair = after.pairs[random() % after.pairs.size()];
    VariantResult& variant = pair.variants[random() % pair.variants.size()];
    const std::optional<double> differs = deviation_of(recorded.logs[pair.target + " " + variant.name + pair.source_digest]);
    if (!differs || *differs >= spread) continue;
    const Speedup kept = *variant.speedup;
    variant.speedup = Speedup{kept.value / 1.05, kept.low / 1.05, kept.high / 1.05, kept.verdict};
    ++planted.draws;
    planted.found += is_told_worse(compare_runs(before, after, 0.05, &recorded.folder), pair.target, variant.name);
    variant.speedup = kept;
  }
  return planted;
}

TEST(RecordedRuns, OfEqualCodeAreNeverRedAndAPlantedLossIsFound) {
  struct Card {
    const char *hardware, *gpu;
    double spread;  // up to which 95 % of the planted losses are found
  };
  for (const auto& [hardware, gpu, spread] :
       {Card{"h200", "NVIDIA H200", 0.008}, {"h100_80gb_hbm3", "NVIDIA H100 80GB HBM3", 0.014}}) {
    RecordedSuites recorded{hardware, gpu};
    std::mt19937_64 random{5};
    int orders = 0;
    Planted planted;
    for (const auto& [first_name, first] : recorded.runs)
      for (const auto& [second_name, second] : recorded.runs) {
        if (&first == &second) continue;
        const RunRecord before = of_equal_code(first, second);
        RunRecord after = of_equal_code(second, first);
        if (variants_of(before) < 30) continue;
        ++orders;
        EXPECT_FALSE(is_red(compare_runs(before, after, 0.05, &recorded.folder)))
            << hardware << ", " << first_name << " and " << second_name;
        const Planted here = plant(recorded, before, after, spread, random);
        planted.draws += here.draws;
        planted.found += here.found;
      }
    EXPECT_GE(orders, 30) << hardware;
    EXPECT_GE(planted.draws, 200) << hardware;
    EXPECT_GE(planted.found, 0.95 * planted.draws) << hardware << ", of " << planted.draws;
  }
}

TEST(ChangedCode, IsRedAtALossOfFivePercent) {
  const ComparedWorld unchanged, slower{.loss = 1.05};
  int red = 0;
  for (std::uint64_t i = 0; i < 30; ++i)
    red += is_red(compare_runs(Process{unchanged, 100 + i}.run(), Process{slower, 200 + i}.run(), 0.05));
  EXPECT_EQ(red, 30);
}

TEST(Overall, IsTheGeometricMeanOfTheTimesOfBoth) {
  RunComparison comparison;
  const auto add = [&](const char* target, const char* name, const char* metric, double before, double after) {
    comparison.metrics.push_back({.target = target,
                                  .variant = name,
                                  .metric = metric,
                                  .before = {before, before, before},
                                  .after = {after, after, after}});
  };
  EXPECT_EQ(overall(comparison).kernels, 0U);
  add("ch01:a", "x", "time", 8, 1);
  add("ch01:a", "x", "speedup", 3, 300);
  add("ch01:a", "y", "time", 2, 1);
  add("ch01:b", "z", "time", 1, 2);
  add("ch01:b", "w", "time", 0, 2);
  const Overall all = overall(comparison);
  EXPECT_EQ(all.kernels, 3U);
  EXPECT_EQ(all.pairs, 2U);
  EXPECT_DOUBLE_EQ(all.geometric_mean, 2);
  EXPECT_EQ(all.least_of, "ch01:b z");
  EXPECT_DOUBLE_EQ(all.least, 0.5);
  EXPECT_EQ(all.most_of, "ch01:a x");
}

TEST(TwoMachines, AreToldAndWhatTheHostDecidesIsNotJudged) {
  const ComparedWorld world{.host = true}, slower{.loss = 1.5, .host = true};
  RunRecord before = Process{world, 1}.run(), after = Process{slower, 2}.run();
  const auto host_decides = [](const MetricChange& metric) {
    return metric.detail.find("the host decides") != std::string::npos;
  };
  const RunComparison one_machine = compare_runs(before, after, 0.05);
  EXPECT_FALSE(is_red(one_machine)) << "one process each";
  EXPECT_TRUE(std::any_of(one_machine.metrics.begin(), one_machine.metrics.end(), host_decides));
  after.manifest = compared_machine("NVIDIA H200", 2);
  const RunComparison comparison = compare_runs(before, after, 0.05);
  EXPECT_FALSE(is_red(comparison));
  ASSERT_EQ(comparison.machine_differences.size(), 1u);
  EXPECT_EQ(comparison.machine_differences[0], "16 usable CPUs, now 2");
  const auto worse = std::find_if(comparison.metrics.begin(), comparison.metrics.end(), [](const MetricChange& metric) {
    return metric.metric == "speedup" && metric.change == Change::worse;
  });
  ASSERT_NE(worse, comparison.metrics.end());
  EXPECT_THAT(worse->detail, HasSubstr("other machine"));
}

TEST(TwoMachines, ThatAreVirtualAndHaveNoGpuInCommonMayBeOnOtherHosts) {
  const ComparedWorld world{.host = true};
  RunRecord before = Process{world, 1}.run(), after = Process{world, 2}.run();
  after.manifest.gpus[0].uuid = "GPU-of-another";
  ASSERT_EQ(compare_runs(before, after, 0.05).machine_differences.size(), 1u);
  EXPECT_THAT(compare_runs(before, after, 0.05).machine_differences[0],
              HasSubstr("a virtual machine of this kind with other GPUs"));
  before.manifest.virtualization = after.manifest.virtualization = "";
  EXPECT_TRUE(compare_runs(before, after, 0.05).machine_differences.empty());
}

TEST(TwoMachines, OfOneGpuAreComparedInWhatWaitsForIt) {
  const ComparedWorld world, slower{.loss = 1.5};
  RunRecord before = Process{world, 1}.run(), after = Process{slower, 2}.run();
  after.manifest = compared_machine("NVIDIA H200", 2);
  EXPECT_TRUE(is_red(compare_runs(before, after, 0.05)));
  after.manifest = compared_machine("NVIDIA H200 NVL");
  const RunComparison comparison = compare_runs(before, after, 0.05);
  EXPECT_FALSE(comparison.same_hardware);
  EXPECT_FALSE(is_red(comparison));
}

TEST(Profiled, IsComparedUnderItsFieldsNamesAndNeverRed) {
  const ComparedWorld world;
  RunRecord before = Process{world, 1}.run(), after = Process{world, 1}.run();
  for (auto& [run, reads, kernel_ms] : {std::tuple{&before, 1e9, 1.0}, {&after, 2e9, 0.5}}) {
    VariantResult& variant = run->pairs[0].variants[1];
    variant.counters = Counters{.dram_read_bytes = reads, .occupancy_percent = 50};
    variant.profile = Profile{.launches = 96, .kernel_ms = kernel_ms};
  }
  const RunComparison comparison = compare_runs(before, after, 0.05);
  const auto of = [&](const std::string& name) {
    return std::ranges::find_if(comparison.metrics, [&](const MetricChange& m) { return m.metric == name; });
  };
  const auto reads = of("counters.dram_read_bytes"), kernels = of("profile.kernel_ms"),
             occupancy = of("counters.occupancy_percent");
  ASSERT_NE(reads, comparison.metrics.end());
  ASSERT_NE(kernels, comparison.metrics.end());
  ASSERT_NE(occupancy, comparison.metrics.end());
  EXPECT_EQ(reads->change, Change::worse);
  EXPECT_FALSE(reads->is_regression);
  EXPECT_EQ(reads->detail, "single readings");
  EXPECT_EQ(kernels->change, Change::better);
  EXPECT_EQ(occupancy->change, Change::same);
  EXPECT_EQ(of("counters.l2_hit_percent"), comparison.metrics.end()) << "what was not counted is not there";
}

TEST(Compared, HasTheSamplesOfBothSides) {
  const ComparedWorld world;
  const RunRecord before = Process{world, 1}.run(), after = Process{world, 2}.run();
  const RunComparison comparison = compare_runs(before, after, 0.05);
  const MetricChange& time = comparison.metrics.front();
  ASSERT_EQ(time.metric, "time");
  EXPECT_EQ(time.before_raw, before.pairs[0].variants[0].timing->raw_times_ms);
  EXPECT_EQ(time.after_raw, after.pairs[0].variants[0].timing->raw_times_ms);
}

class MergedRuns : public testing::Test {
 protected:
  // Pairs with even numbers are of a machine like all others, those with odd ones of `second`.
  static RunRecord merged(RunRecord run, Manifest second) {
    Manifest first = run.manifest;
    first.machine = "a";
    second.machine = "b";
    run.manifest = {};
    run.manifest.machines = {first, second};
    for (std::size_t i = 0; i < run.pairs.size(); ++i) run.pairs[i].machine = i % 2 == 0 ? "a" : "b";
    return run;
  }

  template <class Which>
  static std::size_t targets(const RunComparison& comparison, const Which& which) {
    std::set<std::string> found;
    for (const MetricChange& metric : comparison.metrics)
      if (which(metric)) found.insert(metric.target);
    return found.size();
  }
};

TEST_F(MergedRuns, EachPairIsComparedOnItsOwnGpu) {
  const ComparedWorld world, slower{.loss = 1.5};
  const RunRecord before = Process{world, 1}.run(), after = Process{slower, 2}.run();
  const auto red = [&](const RunRecord& other) {
    return targets(compare_runs(before, other, 0.05), [](const MetricChange& metric) { return metric.is_regression; });
  };
  EXPECT_EQ(red(merged(after, compared_machine())), 10u);
  EXPECT_EQ(red(merged(after, compared_machine("NVIDIA H200 NVL"))), 5u) << "those of the other GPU are not judged";
}

TEST_F(MergedRuns, EachPairIsComparedOnItsOwnHost) {
  const ComparedWorld world{.host = true}, slower{.loss = 1.5, .host = true};
  const RunRecord before = Process{world, 1}.run(), after = merged(Process{slower, 2}.run(), compared_machine("NVIDIA H200", 2));
  const auto other_machine = [](const MetricChange& metric) { return metric.detail.find("other machine") != std::string::npos; };
  const RunComparison comparison = compare_runs(before, after, 0.05);
  EXPECT_EQ(targets(comparison, other_machine), 5u);
  EXPECT_EQ(comparison.machine_differences, std::vector<std::string>{"16 usable CPUs, now 2"});
  EXPECT_TRUE(compare_runs(after, after, 0.05).machine_differences.empty());
}

}  // namespace
}  // namespace aisp::evidence
