// SPDX-License-Identifier: Apache-2.0
#include "evidence/expectations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"

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
  PairResult pair{.target = "ch07:transpose", .chapter = "ch07", .name = "transpose", .source_digest = "abc", .device = "gpu"};
  pair.gpus = {"GPU-1"};
  pair.variants = {variant("strided", VariantRole::baseline, 4.2),
                   variant("tiled", VariantRole::optimized, 4.2 / speedup, speedup),
                   variant("cublas", VariantRole::peer, 0.54, 7.8)};
  pair.best = "tiled";
  return pair;
}

Manifest manifest_of(const std::string& gpu) {
  Manifest manifest{.run_id = "run", .commit = "1234", .dirty = true};
  manifest.gpus = {{.ordinal = 0, .name = gpu, .uuid = "GPU-1"}, {.ordinal = 1, .name = gpu, .uuid = "GPU-2"}};
  return manifest;
}

TEST(HardwareKey, NamesTheKindOfGpuAndHowMany) {
  PairResult pair = pair_with(8);
  EXPECT_EQ(hardware_key(pair, manifest_of("NVIDIA H200")), "h200");
  EXPECT_EQ(hardware_key(pair, manifest_of("NVIDIA A100-SXM4-80GB")), "a100");
  EXPECT_EQ(hardware_key(pair, manifest_of("NVIDIA H100 80GB HBM3")), "h100");
  EXPECT_EQ(hardware_key(pair, manifest_of("NVIDIA GeForce RTX 4090")), "rtx_4090");
  pair.gpus = {"GPU-1", "GPU-2"};
  EXPECT_EQ(hardware_key(pair, manifest_of("NVIDIA H200")), "2x_h200");
  pair.gpus.clear();
  pair.device = "host";
  EXPECT_EQ(hardware_key(pair, manifest_of("NVIDIA H200")), "host");
}

TEST(Expectations, AreRecordedWithTheirRunAndReadBack) {
  const base::ScratchDirectory folder;
  const SuiteResult suite{.pairs = {pair_with(8)}};
  const Recording recording = record(folder.path(), suite, manifest_of("NVIDIA H200"));
  EXPECT_EQ(recording.recorded, std::vector<std::string>{"ch07:transpose"});
  const auto read = read_expectations(expectations_path(folder.path(), "h200", "ch07"));
  ASSERT_TRUE(read);
  const ExpectedPair& pair = read->pairs.at("transpose");
  EXPECT_EQ(pair.source_digest, "abc");
  EXPECT_EQ(pair.recorded.commit, "1234+changes");
  EXPECT_EQ(pair.recorded.gpu, "NVIDIA H200");
  EXPECT_DOUBLE_EQ(pair.baseline_median_ms, 4.2);
  EXPECT_DOUBLE_EQ(pair.variants.at("tiled").speedup_low, 8 * 0.99);
  EXPECT_TRUE(pair.variants.contains("cublas"));
}

TEST(Expectations, KeepWhatARooflineNeeds) {
  const base::ScratchDirectory folder;
  PairResult pair = pair_with(8);
  pair.bound = "memory";
  pair.ceilings = Ceilings{.memory_bytes_s = 4e12, .flops_s = {{"fp32", 5e13}}, .source = "measured"};
  pair.variants[0].cost = {.flops = 1, .bytes = 2, .math = "fp32", .bytes_of = "device memory"};
  pair.variants[1].cost = {.flops = 3, .bytes = 4, .math = "bf16", .bytes_of = "device memory"};
  record(folder.path(), {.pairs = {pair}}, manifest_of("NVIDIA H200"));
  const std::vector<Expectations> all = read_all_expectations(folder.path());
  ASSERT_EQ(all.size(), 1u);
  const ExpectedPair& read = all[0].pairs.at("transpose");
  EXPECT_EQ(read.bound, "memory");
  EXPECT_EQ(read.baseline, "strided");
  EXPECT_EQ(read.baseline_cost.bytes, 2);
  EXPECT_EQ(read.variants.at("tiled").cost.math, "bf16");
  EXPECT_EQ(read.ceilings->flops_s.at("fp32"), 5e13);
  // The peer is nearly as fast, and is not ours.
  EXPECT_EQ(read.variants.at("cublas").role, VariantRole::peer);
  ASSERT_NE(best_of(read), nullptr);
  EXPECT_EQ(best_of(read)->first, "tiled");
}

TEST(Expectations, CoverAllRunsOfTheSameCodeAndStartAnewWithOther) {
  const base::ScratchDirectory folder;
  const Manifest manifest = manifest_of("NVIDIA H200");
  const auto recorded = [&](const PairResult& pair) {
    record(folder.path(), {.pairs = {pair}}, manifest);
    return read_expectations(expectations_path(folder.path(), "h200", "ch07"))->pairs.at("transpose");
  };
  recorded(pair_with(8));
  const ExpectedPair both = recorded(pair_with(8.5));
  EXPECT_EQ(both.recorded.runs, 2);
  EXPECT_DOUBLE_EQ(both.variants.at("tiled").speedup, 8.5);
  EXPECT_DOUBLE_EQ(both.variants.at("tiled").speedup_low, 8 * 0.99);
  EXPECT_DOUBLE_EQ(both.variants.at("tiled").speedup_high, 8.5 * 1.01);
  PairResult changed = pair_with(4);
  changed.source_digest = "def";
  EXPECT_EQ(recorded(changed).recorded.runs, 1);
  EXPECT_DOUBLE_EQ(recorded(changed).variants.at("tiled").speedup_high, 4 * 1.01);
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
  kernel.timing_mode = "kernel";
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
  const Recording recording = record(folder.path(), {.pairs = {failed}}, manifest_of("NVIDIA H200"));
  EXPECT_TRUE(recording.files.empty());
  EXPECT_EQ(recording.left_out.size(), 1u);
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
