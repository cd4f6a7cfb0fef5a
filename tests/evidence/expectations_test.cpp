// SPDX-License-Identifier: Apache-2.0
#include "evidence/expectations/expectations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.hpp"
#include "base/system/files.hpp"

namespace aisp::evidence {
namespace {

using testing::HasSubstr;

VariantResult variant(const char* name, VariantRole role, double median_ms, double speedup = 0) {
  VariantResult result{.name = name, .role = role};
  result.timing.emplace().summary.median = median_ms;
  if (speedup > 0) result.speedup = Speedup{speedup, speedup * 0.99, speedup * 1.01, Verdict::faster};
  return result;
}

PairResult pair_with(double speedup) {
  PairResult pair{
      .target = "ch07:transpose", .chapter = "ch07", .name = "transpose", .source_digest = "abc", .device = Device::gpu};
  pair.gpus = {"GPU-1"};
  pair.variants = {variant("strided", VariantRole::baseline, 4.2),
                   variant("tiled", VariantRole::optimized, 4.2 / speedup, speedup),
                   variant("cublas", VariantRole::library, 0.54, 7.8)};
  pair.lesson = pair.best = "tiled";
  return pair;
}

Manifest manifest_of(const std::string& gpu, const std::string& run_id = "run", int cpus = 16) {
  Manifest manifest{.run_id = run_id, .commit = "1234", .dirty = true, .cpus_usable = cpus};
  manifest.gpus = {{.ordinal = 0, .name = gpu, .uuid = "GPU-1"}, {.ordinal = 1, .name = gpu, .uuid = "GPU-2"}};
  return manifest;
}

TEST(Expectations, AreRecordedWithTheirRunAndReadBack) {
  const base::ScratchDirectory folder;
  const SuiteResult suite{.pairs = {pair_with(8)}};
  const ExpectationUpdate recording = record(folder.path(), suite, manifest_of("NVIDIA H200"));
  EXPECT_EQ(recording.recorded, std::vector<std::string>{"ch07:transpose"});
  const auto read = read_expectations(expectations_path(folder.path(), "h200", "ch07"));
  ASSERT_TRUE(read);
  const ExpectedPair& pair = read->pairs.at("transpose");
  EXPECT_EQ(pair.source_digest, "abc");
  EXPECT_EQ(pair.recorded.commit, "1234+changes");
  EXPECT_EQ(pair.recorded.gpu, "NVIDIA H200");
  EXPECT_DOUBLE_EQ(pair.baseline_median_ms, 4.2);
  EXPECT_DOUBLE_EQ(pair.variants.at("tiled").speedup, 8);
  ASSERT_EQ(pair.runs.size(), 1u);
  EXPECT_DOUBLE_EQ(pair.runs[0].variants.at("tiled").speedup_low, 8 * 0.99);
  EXPECT_LT(pair.variants.at("tiled").speedup_low, 8 * 0.99) << "one run does not know what processes differ by";
  EXPECT_EQ(pair.runs[0].fingerprint, fingerprint_of(pair_with(8), manifest_of("NVIDIA H200")));
  EXPECT_TRUE(pair.variants.contains("cublas"));
}

TEST(Expectations, KeepWhatARooflineNeeds) {
  const base::ScratchDirectory folder;
  PairResult pair = pair_with(8);
  pair.bound = Bound::memory;
  pair.ceilings = ResultCeilings{.memory_bytes_s = 4e12, .flops_s = {{"fp32", 5e13}}, .source = "measured"};
  pair.variants[0].cost = {.flops = 1, .bytes = 2, .math = "fp32", .bytes_of = ByteKind::device_memory};
  pair.variants[1].cost = {.flops = 3, .bytes = 4, .math = "bf16", .bytes_of = ByteKind::device_memory};
  record(folder.path(), {.pairs = {pair}}, manifest_of("NVIDIA H200"));
  const std::vector<Expectations> all = read_all_expectations(folder.path());
  ASSERT_EQ(all.size(), 1u);
  const ExpectedPair& read = all[0].pairs.at("transpose");
  EXPECT_EQ(read.bound, Bound::memory);
  EXPECT_EQ(read.baseline, "strided");
  EXPECT_EQ(read.baseline_cost.bytes, 2);
  EXPECT_EQ(read.variants.at("tiled").cost.math, "bf16");
  EXPECT_EQ(read.ceilings->flops_s.at("fp32"), 5e13);
  // The library is nearly as fast, and is not ours.
  EXPECT_EQ(read.variants.at("cublas").role, VariantRole::library);
  EXPECT_EQ(read.lesson, "tiled");
}

// Records into one file and reads it back.
class Recorder {
 public:
  ExpectedPair add(const PairResult& pair, const Manifest& manifest) {
    record(folder_.path(), {.pairs = {pair}}, manifest);
    return read();
  }
  ExpectedPair read() const {
    return read_expectations(expectations_path(folder_.path(), "h200", "ch07"))->pairs.at("transpose");
  }

 private:
  base::ScratchDirectory folder_;
};

TEST(Expectations, AreTheMedianOfAllRunsOfTheSameCodeAndStartAnewWithOther) {
  Recorder recorder;
  const char* ids[] = {"a", "b", "c"};
  const double speedups[] = {8, 8.4, 8.1};
  ExpectedPair pair;
  for (int i = 0; i < 3; ++i) pair = recorder.add(pair_with(speedups[i]), manifest_of("NVIDIA H200", ids[i]));
  EXPECT_EQ(pair.recorded.runs, 3);
  EXPECT_EQ(pair.recorded.run_id, "c");
  EXPECT_NEAR(pair.variants.at("tiled").speedup, 8.1, 1e-12);
  EXPECT_NEAR(pair.variants.at("tiled").median_ms, 4.2 / 8.1, 1e-12);
  EXPECT_DOUBLE_EQ(pair.runs[1].variants.at("tiled").speedup, 8.4) << "every run is kept";
  PairResult changed = pair_with(4);
  changed.source_digest = "def";
  pair = recorder.add(changed, manifest_of("NVIDIA H200", "d"));
  EXPECT_EQ(pair.recorded.runs, 1);
  EXPECT_EQ(pair.runs.size(), 1u);
  EXPECT_DOUBLE_EQ(pair.variants.at("tiled").speedup, 4);
}

TEST(Expectations, TakeTheLowerBoundFromTheBestCeilingOfAllRuns) {
  Recorder recorder;
  ExpectedPair pair;
  for (const double percent : {80, 100, 90}) {
    PairResult run = pair_with(8);
    run.variants[1].floor = Floor{.milliseconds = 0.525 * percent / 100, .percent = percent};
    pair = recorder.add(run, manifest_of("NVIDIA H200", std::to_string(percent)));
  }
  EXPECT_NEAR(*pair.variants.at("tiled").percent_of_floor, 80, 1e-9);
}

TEST(Expectations, KeepTheBestCeilingsOfAllRuns) {
  Recorder recorder;
  ExpectedPair pair;
  for (const double factor : {1.0, 1.5, 1.25}) {
    PairResult run = pair_with(8);
    run.ceilings = {.memory_bytes_s = 4e12 / factor, .flops_s = {{"bf16", 6e14 * factor}}, .source = "measured"};
    pair = recorder.add(run, manifest_of("NVIDIA H200", std::to_string(factor)));
  }
  EXPECT_EQ(pair.ceilings->memory_bytes_s, 4e12);
  EXPECT_EQ(pair.ceilings->flops_s.at("bf16"), 9e14);
}

TEST(Expectations, OfHostPairsHaveTheGpusOfTheirMachine) {
  const base::ScratchDirectory folder;
  PairResult pair = pair_with(8);
  pair.device = Device::host;
  pair.gpus.clear();
  const Manifest manifest = manifest_of("NVIDIA H200");
  record(folder.path(), {.pairs = {pair}}, manifest);
  const ExpectedPair recorded = read_expectations(expectations_path(folder.path(), "host", "ch07"))->pairs.at("transpose");
  EXPECT_EQ(recorded.runs[0].gpu_ids, gpu_ids(manifest));
  EXPECT_EQ(gpu_ids(manifest).size(), 2u);
}

TEST(Expectations, CountTheGpusBehindThemWithoutNamingThem) {
  Recorder recorder;
  PairResult pair = pair_with(8);
  recorder.add(pair, manifest_of("NVIDIA H200", "a"));
  recorder.add(pair, manifest_of("NVIDIA H200", "b"));
  EXPECT_EQ(recorder.read().recorded.gpu_ids.size(), 1u);
  pair.gpus = {"GPU-2"};
  EXPECT_EQ(recorder.add(pair, manifest_of("NVIDIA H200", "c")).recorded.gpu_ids.size(), 2u);
  for (const RecordedRun& run : recorder.read().runs) {
    ASSERT_EQ(run.gpu_ids.size(), 1u);
    EXPECT_THAT(run.gpu_ids[0], testing::MatchesRegex("[0-9a-f]{12}"));
  }
  EXPECT_EQ(recorder.read().runs[0].gpu_ids, recorder.read().runs[1].gpu_ids);
  EXPECT_EQ(recorder.read().runs[0].machine, recorder.read().runs[2].machine) << "they are of one kind of machine";
}

TEST(Expectations, TheSameRunTwiceIsOneRun) {
  Recorder recorder;
  recorder.add(pair_with(8), manifest_of("NVIDIA H200"));
  EXPECT_EQ(recorder.add(pair_with(8), manifest_of("NVIDIA H200")).recorded.runs, 1);
}

TEST(Expectations, OfTwoMachinesStandSideBySide) {
  Recorder recorder;
  PairResult launches = pair_with(8), slower = pair_with(5);
  launches.host_dependent = slower.host_dependent = true;
  const Manifest a = manifest_of("NVIDIA H200", "a", 16), b = manifest_of("NVIDIA H200", "b", 2);
  recorder.add(launches, a);
  const ExpectedPair pair = recorder.add(slower, b);
  EXPECT_EQ(pair.runs.size(), 2u) << "B does not evict A";
  const auto speedup_on = [](const ExpectedPair& recorded, const PairResult& result, const Manifest& manifest) {
    const Applicable found = applicable(recorded, result.source_digest, fingerprint_of(result, manifest));
    EXPECT_TRUE(found.machine_differences.empty());
    EXPECT_TRUE(found.same_code);
    return found.expected.variants.at("tiled").speedup;
  };
  EXPECT_DOUBLE_EQ(speedup_on(pair, launches, a), 8);
  EXPECT_DOUBLE_EQ(speedup_on(pair, slower, b), 5);
  const Manifest unknown = manifest_of("NVIDIA H200", "c", 64);
  const Applicable other = applicable(pair, launches.source_digest, fingerprint_of(launches, unknown));
  EXPECT_EQ(other.machine_differences, std::vector<std::string>{"2 usable CPUs, now 64"}) << "against the latest";

  slower.source_digest = "def";
  const ExpectedPair changed = recorder.add(slower, b);
  EXPECT_EQ(changed.runs.size(), 2u);
  EXPECT_FALSE(applicable(changed, "def", fingerprint_of(launches, a)).same_code) << "A measured other code";
  EXPECT_TRUE(applicable(changed, "def", fingerprint_of(launches, b)).same_code);
}

TEST(Expectations, OfTheMachineWithTheMostRunsAreShown) {
  Recorder recorder;
  const auto add = [&](double speedup, const char* run, int cpus) {
    PairResult pair = pair_with(speedup);
    pair.host_dependent = true;
    pair.started_utc = run;
    recorder.add(pair, manifest_of("NVIDIA H200", run, cpus));
  };
  add(8, "a", 16);
  add(8, "b", 16);
  add(5, "c", 2);
  EXPECT_EQ(recorder.read().recorded.cpus_usable, 16);
  EXPECT_DOUBLE_EQ(recorder.read().variants.at("tiled").speedup, 8);
  add(5, "d", 2);
  EXPECT_EQ(recorder.read().recorded.cpus_usable, 2) << "of two with as many the later one";
  EXPECT_DOUBLE_EQ(recorder.read().variants.at("tiled").speedup, 5);
}

TEST(Expectations, OfWhatWaitsForTheGpuAloneTravel) {
  Recorder recorder;
  recorder.add(pair_with(8), manifest_of("NVIDIA H200", "a", 16));
  const Manifest other = manifest_of("NVIDIA H200", "b", 2);
  const ExpectedPair pair = recorder.add(pair_with(8.02), other);
  EXPECT_EQ(pair.recorded.runs, 2) << "both machines' runs are runs of one kind of GPU";
  EXPECT_TRUE(
      applicable(pair, "abc", fingerprint_of(pair_with(8), manifest_of("NVIDIA H200", "c", 64))).machine_differences.empty());
}

TEST(Expectations, OfOtherPairsStay) {
  const base::ScratchDirectory folder;
  PairResult other = pair_with(3);
  other.name = "tile_padding";
  record(folder.path(), {.pairs = {other}}, manifest_of("NVIDIA H200"));
  record(folder.path(), {.pairs = {pair_with(8)}}, manifest_of("NVIDIA H200"));
  EXPECT_EQ(read_expectations(expectations_path(folder.path(), "h200", "ch07"))->pairs.size(), 2u);
}

TEST(Expectations, AreNotMadeOfWhatSaysLittle) {
  EXPECT_FALSE(not_recordable(pair_with(8)));
  PairResult failed = pair_with(8), small = pair_with(8), kernel = pair_with(8), cut = pair_with(8), sized = pair_with(8);
  failed.status = Status::failed;
  small.scale = 0.1;
  kernel.timing_mode = TimingMode::kernel;
  cut.complete = false;
  EXPECT_EQ(not_recordable(failed), "it did not pass");
  EXPECT_THAT(*not_recordable(small), HasSubstr("0.1"));
  EXPECT_THAT(*not_recordable(kernel), HasSubstr("kernel"));
  sized.sizes = {{"m", 4096}};
  EXPECT_FALSE(not_recordable(sized)) << "its own sizes";
  sized.sizes_set = true;
  EXPECT_THAT(*not_recordable(sized), HasSubstr("m=4096"));
  EXPECT_TRUE(not_recordable(cut));
  const base::ScratchDirectory folder;
  const ExpectationUpdate recording = record(folder.path(), {.pairs = {failed}}, manifest_of("NVIDIA H200"));
  EXPECT_TRUE(recording.files.empty());
  EXPECT_EQ(recording.left_out.size(), 1u);
}

TEST(Expectations, SayWhatWeakensThem) {
  const base::ScratchDirectory folder;
  const std::string tiled = "ch07:transpose tiled h200";
  const auto record_as = [&](const char* run_id, double speedup, double half_width) {
    PairResult pair = pair_with(speedup);
    pair.variants[1].speedup = Speedup{speedup, speedup / half_width, speedup * half_width, Verdict::faster};
    return record(folder.path(), {.pairs = {pair}}, manifest_of("NVIDIA H200", run_id));
  };
  EXPECT_THAT(record_as("noisy", 8, 4).wide.at(tiled), HasSubstr("% passes"));
  ExpectationUpdate last;
  for (const char* run_id : {"a", "b", "c", "d", "e", "f"}) last = record_as(run_id, 8, 1.01);
  EXPECT_EQ(last.wide.at(tiled), "") << "the noisy one is one of seven";
  EXPECT_THAT(last.far, testing::IsEmpty());
  EXPECT_THAT(record_as("out", 16, 1.01).far,
              testing::ElementsAre(HasSubstr("ch07:transpose tiled: out measured 16x, where the 7 before it have 8x")));
}

TEST(Expectations, AreNotMadeOfWhatIsNoNumber) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Speedup& speedup : {Speedup{nan, nan, nan}, Speedup{-4, -5, -3}, Speedup{4, 10, 1}, Speedup{0, 0, 0}}) {
    PairResult pair = pair_with(8);
    pair.variants[1].speedup = speedup;
    const base::ScratchDirectory folder;
    const ExpectationUpdate recording = record(folder.path(), {.pairs = {pair}}, manifest_of("NVIDIA H200"));
    EXPECT_TRUE(recording.files.empty());
    ASSERT_EQ(recording.left_out.size(), 1u);
    EXPECT_EQ(recording.left_out[0].second, "the speedup of tiled is no number");
  }
}

std::string refusal(const std::string& text, const std::string& place = "h200/ch07.json") {
  const base::ScratchDirectory folder;
  const auto file = folder.path() / place;
  base::make_directories(file.parent_path());
  base::write_atomically(file, text);
  try {
    read_expectations(file);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.status(), base::Exit::usage);
    EXPECT_THAT(error.what(), HasSubstr(file.string()));
    return error.what();
  }
  return {};
}

std::string written(const PairResult& pair) {
  const base::ScratchDirectory folder;
  record(folder.path(), {.pairs = {pair}}, manifest_of("NVIDIA H200"));
  return base::read_file(expectations_path(folder.path(), "h200", "ch07"));
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

TEST(Expectations, SpeedupsThatAreNoneAreRefusedWithTheirPlace) {
  PairResult pair = pair_with(8);
  pair.variants[1].speedup = Speedup{8, 7.5, 8.5, Verdict::faster};
  const std::string good = written(pair);
  EXPECT_EQ(refusal(good), "");
  for (const char* bad : {"null", "-4", "0", "1e999"})
    EXPECT_THAT(refusal(replaced(good, "\"speedup\": 8.0", std::string{"\"speedup\": "} + bad)),
                testing::AnyOf(HasSubstr("pairs.transpose.runs[0].variants.tiled"), HasSubstr("not valid JSON")))
        << bad;
  EXPECT_THAT(refusal(replaced(good, "\"speedup_low\": 7.5", "\"speedup_low\": 10")), HasSubstr("variants.tiled"));
  EXPECT_THAT(refusal(replaced(good, "\"speedup_high\": 8.5", "\"speedup_high\": null")), HasSubstr("variants.tiled"));
  EXPECT_THAT(refusal(replaced(good, "\"baseline_median_ms\": 4.2", "\"baseline_median_ms\": null")),
              HasSubstr("runs[0].baseline_median_ms"));
}

TEST(Expectations, AreOfTheirPlaceAndOfAVersion) {
  const std::string good = written(pair_with(8));
  EXPECT_THAT(refusal(good, "h100_pcie/ch07.json"), HasSubstr("of h200 ch07"));
  EXPECT_THAT(refusal(good, "h200/ch08.json"), HasSubstr("of h200 ch07"));
  EXPECT_THAT(refusal(replaced(good, "\"schema_version\": 3", "\"schema_version\": 2")), HasSubstr("schema_version 2 is not 3"));
  EXPECT_THAT(refusal(replaced(good, "\"schema_version\": 3", "\"another\": 3")), HasSubstr("no schema_version"));
  EXPECT_THAT(refusal(replaced(good, "\"lesson\": \"tiled\"", "\"note\": \"tiled\"")),
              HasSubstr("transpose: it names no lesson"));
  EXPECT_THAT(refusal(replaced(good, "\"machine\": \"", "\"machine\": \"x")), HasSubstr("runs[0]"));
  const base::ScratchDirectory folder;
  const auto file = folder.path() / "h200/ch08.json";
  base::make_directories(file.parent_path());
  base::write_atomically(file, good);
  EXPECT_THROW(read_all_expectations(folder.path()), base::Error);
}

TEST(Expectations, DamagedFilesAreNamedAndNotOverwritten) {
  const base::ScratchDirectory folder;
  const auto file = expectations_path(folder.path(), "h200", "ch07");
  base::make_directories(file.parent_path());
  base::write_atomically(file, "{\"pairs\": {\"transpose\": {\"variants\": 3}}");
  try {
    record(folder.path(), {.pairs = {pair_with(8)}}, manifest_of("NVIDIA H200"));
    FAIL() << "a damaged file was taken";
  } catch (const base::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("ch07.json"));
  }
  EXPECT_THAT(base::read_file(file), HasSubstr("\"variants\": 3"));
}

}  // namespace
}  // namespace aisp::evidence
