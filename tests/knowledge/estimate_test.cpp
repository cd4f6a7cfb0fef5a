// SPDX-License-Identifier: Apache-2.0
// The published worked examples, and the properties that their formulas promise.
#include "knowledge/estimate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.hpp"

namespace aisp::knowledge {
namespace {

using machine::find_spec;
using testing::HasSubstr;

Question about(const char* model, const char* gpu, double gpus = 1) {
  return {.model = find_model(model), .gpu = &find_spec(gpu), .gpus = gpus, .context = 8192, .prompt = 1024};
}

std::string refusal(const Question& question) {
  try {
    estimate(question);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.status(), base::Exit::usage);
    return error.what();
  }
  return "accepted";
}

TEST(WorkedExample, RidgeOfTheH100Is295) { EXPECT_NEAR(find_spec("h100").ridge(NumberType::bf16), 295, 0.5); }

TEST(WorkedExample, DecodeOf8BillionTakesFourPointEightMilliseconds) {
  const Estimate e = estimate(about("llama-3-8b", "h100"));
  EXPECT_NEAR(e.decode_weights_alone.seconds * 1e3, 4.8, 0.05);
  EXPECT_NEAR(1 / e.decode_weights_alone.seconds, 208, 1);
  // 8192 positions of 131072 bytes more
  EXPECT_NEAR(e.decode.seconds - e.decode_weights_alone.seconds, 8192 * 131'072 / 3.35e12, 1e-9);
}

TEST(WorkedExample, PrefillGemmHas680AndDecodeGemvOne) {
  const Estimate e = estimate(about("llama-3-8b", "h100"));
  EXPECT_DOUBLE_EQ(e.prefill_gemm.intensity(), 2048.0 / 3);  // 34 GFLOP / 50 MB = 680 when both are rounded
  EXPECT_NEAR(e.prefill_gemm.rounded_intensity(), 680, 1e-9);
  EXPECT_NEAR(e.decode_gemm.rounded_intensity(), 1, 1e-9);
  EXPECT_NEAR(e.prefill_gemm.flops(), 34e9, 0.5e9);
  EXPECT_NEAR(e.prefill_gemm.bytes(), 50e6, 0.5e6);
  EXPECT_NEAR(e.decode_gemm.intensity(), 1, 0.001);
  EXPECT_FALSE(e.prefill.memory_bound);
  EXPECT_TRUE(e.decode.memory_bound);
}

TEST(WorkedExample, FiveThousandTokensOnEightA100UseThreePercent) {
  Question q = about("llama-3-8b", "a100", 8);
  EXPECT_FALSE(estimate(q).mfu.has_value());
  q.tokens_per_second = 5000;
  EXPECT_NEAR(estimate(q).mfu.value(), 0.03, 0.005);
}

TEST(WorkedExample, FourHundredBillionFitEightH200AndNotEightA100) {
  const Estimate h200 = estimate(about("llama-3-405b", "h200", 8));
  EXPECT_NEAR(h200.fit.weights_bytes, 810e9, 3e9);
  EXPECT_EQ(h200.memory_bytes, 8 * 150.1e9) << "that programs find";
  EXPECT_TRUE(h200.fit.fits);
  const Estimate a100 = estimate(about("llama-3-405b", "a100", 8));
  EXPECT_EQ(a100.memory_bytes, 640e9);
  EXPECT_FALSE(a100.fit.fits);
  EXPECT_EQ(a100.fit.gpus_needed, 11);  // 816 GB with the cache / 80 GB
  EXPECT_EQ(a100.largest_batch, 0);
}

TEST(Estimate, CountsTheCache) {
  Question q = about("llama-3-8b", "h200");
  q.batch = 4;
  const Estimate e = estimate(q);
  EXPECT_EQ(e.cache_bytes_per_token, 2 * 32 * 8 * 128 * 2);
  EXPECT_EQ(e.fit.cache_bytes, 4 * 8192 * e.cache_bytes_per_token);
  q.batch = e.largest_batch;
  EXPECT_TRUE(estimate(q).fit.fits);
  q.batch = e.largest_batch + 1;
  EXPECT_FALSE(estimate(q).fit.fits);
}

TEST(Estimate, SmallestNumberOfGpusIsTheSmallest) {
  for (const char* model : {"llama-3-70b", "llama-3-405b", "mixtral-8x7b", "deepseek-v3"})
    for (const char* gpu : {"a100", "h200", "l40s"}) {
      Question q = about(model, gpu);
      q.gpus = estimate(q).fit.gpus_needed;
      EXPECT_TRUE(estimate(q).fit.fits) << model << " " << gpu;
      if (q.gpus == 1) continue;
      q.gpus -= 1;
      EXPECT_FALSE(estimate(q).fit.fits) << model << " " << gpu;
    }
}

TEST(Estimate, AtTheRidgeBatchArithmeticTakesAsLongAsMemory) {
  Question q = about("llama-3-70b", "h100");
  q.context = q.prompt = 128;
  const Estimate e = estimate(q);
  EXPECT_NEAR(e.ridge_batch_weights_alone, 295.3, 0.1);  // two bytes and two FLOP a parameter
  ASSERT_TRUE(e.ridge_batch.has_value());
  EXPECT_GT(*e.ridge_batch, e.ridge_batch_weights_alone);
  q.batch = std::floor(*e.ridge_batch);
  EXPECT_TRUE(estimate(q).decode.memory_bound);
  q.batch += 1;
  EXPECT_FALSE(estimate(q).decode.memory_bound);
}

TEST(Estimate, LongCachesKeepEveryBatchMemoryBound) {
  Question q = about("llama-3-8b", "h100");
  EXPECT_FALSE(estimate(q).ridge_batch.has_value());
  q.batch = 1e6;
  EXPECT_TRUE(estimate(q).decode.memory_bound);
}

TEST(Estimate, MoreGpusAreFasterInProportion) {
  const double one = estimate(about("llama-3-70b", "h200", 1)).decode.seconds;
  EXPECT_NEAR(estimate(about("llama-3-70b", "h200", 4)).decode.seconds, one / 4, one * 1e-12);
}

TEST(Estimate, WidensWhatTheGpuCannotMultiply) {
  Question q = about("llama-3-8b", "a100");
  q.weights = NumberType::fp8;
  const Estimate e = estimate(q);
  EXPECT_EQ(e.math, NumberType::bf16);
  EXPECT_TRUE(e.math_replaced);
  EXPECT_NEAR(e.fit.weights_bytes, 8.03e9, 0.01e9);
  q.gpu = &find_spec("h100");
  EXPECT_EQ(estimate(q).math, NumberType::fp8);
  q.weights = NumberType::fp4;
  EXPECT_EQ(estimate(q).math, NumberType::fp8);
  q.gpu = &find_spec("b200");
  EXPECT_EQ(estimate(q).math, NumberType::fp4);
}

TEST(WorkedExample, Int4TakesHalfAByteAndIsMultipliedIn16Bits) {
  Question q = about("llama-3-70b", "a100");
  q.weights = NumberType::int4;
  const Estimate e = estimate(q);
  EXPECT_NEAR(e.fit.weights_bytes, 35e9, 0.4e9);
  EXPECT_TRUE(e.fit.fits);
  EXPECT_EQ(e.math, NumberType::bf16);
  EXPECT_TRUE(e.math_replaced);
  Question large = about("llama-3-405b", "a100", 4);
  large.weights = NumberType::int4;
  EXPECT_NEAR(estimate(large).fit.weights_bytes, 202e9, 1e9);
  EXPECT_TRUE(estimate(large).fit.fits);
  EXPECT_EQ(usual_cache(NumberType::int4), NumberType::bf16);
}

TEST(Estimate, TrainingCountsTheBackwardPass) {
  Question q = about("llama-3-8b", "h100", 8);
  q.tokens_per_second = 60'000;
  const double inference = estimate(q).mfu.value();
  q.training = true;
  EXPECT_NEAR(estimate(q).mfu.value(), 3 * inference, 1e-12);
  EXPECT_NEAR(estimate(q).mfu.value(), 6 * 8.03e9 * 60'000 / (8 * 989.4e12), 1e-3);
  q.tokens_per_second.reset();
  EXPECT_THAT(refusal(q), HasSubstr("--tokens-per-second"));
}

TEST(Ranking, TakesAsManyGpusAsHoldTheModelAndPutsTheFastestFirst) {
  const std::vector<Candidate> ranked = rank_gpus(about("llama-3-70b", "h200"));
  EXPECT_EQ(ranked.size(), machine::all_specs().size());
  double last = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : ranked) {
    EXPECT_TRUE(candidate.estimate.fit.fits) << candidate.question.gpu->key;
    EXPECT_LE(candidate.decode_tokens_s_per_gpu(), last);
    last = candidate.decode_tokens_s_per_gpu();
    const std::string_view key = candidate.question.gpu->key;
    if (key == "h100-sxm" || key == "b200") {
      EXPECT_EQ(candidate.question.gpus, key == "b200" ? 1 : 2);
    }
  }
  EXPECT_EQ(rank_gpus(about("llama-3-8b", "h200", 4)).front().question.gpus, 4) << "at least what was asked for";
}

TEST(Estimate, MixturesReadTheExpertsThatAreChosen) {
  const Model& mixtral = find_model("mixtral-8x7b");
  EXPECT_NEAR(mixtral.parameters_read(1), mixtral.active_parameters, 1);
  EXPECT_NEAR(mixtral.parameters_read(1000), mixtral.parameters, 1);
  EXPECT_GT(mixtral.parameters_read(2), mixtral.parameters_read(1));
  EXPECT_LT(mixtral.parameters_read(2), 2 * mixtral.parameters_read(1));
  const Model& dense = find_model("llama-3-8b");
  EXPECT_EQ(dense.parameters_read(1), dense.parameters);
}

TEST(Estimate, LatentAttentionCachesOneVector) {
  const Estimate e = estimate(about("deepseek-v3", "h200", 8));
  EXPECT_EQ(e.cache_bytes_per_token, 61 * 576 * 2);
}

TEST(Models, HaveThePublishedNumberOfParameters) {
  EXPECT_EQ(find_model("llama-3-8b").parameters, 8'030'261'248);
  EXPECT_EQ(find_model("LLAMA-3-70B").parameters, 70'553'706'496);
  EXPECT_EQ(find_model("llama-3-405b").parameters, 405'853'388'800);
  EXPECT_EQ(find_model("qwen2.5-7b").parameters, 7'615'616'512);
  EXPECT_NEAR(find_model("qwen2.5-72b").parameters, 72.7e9, 0.05e9);
  EXPECT_NEAR(find_model("mixtral-8x7b").parameters, 46.7e9, 0.05e9);
  EXPECT_NEAR(find_model("mixtral-8x7b").active_parameters, 12.9e9, 0.05e9);
}

TEST(Models, UnknownOnesGetTheNearest) {
  try {
    find_model("llama3-8b");
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("nearest are llama-3-8b"));
    EXPECT_EQ(error.status(), base::Exit::usage);
  }
}

TEST(BadQuestions, SayWhatIsWrong) {
  const auto with = [](auto change) {
    Question q = about("llama-3-8b", "h200");
    change(q);
    return refusal(q);
  };
  EXPECT_THAT(with([](Question& q) { q.model.heads = 0; }), HasSubstr("heads must be a whole number from 1"));
  EXPECT_THAT(with([](Question& q) { q.model.layers = -3; }), HasSubstr("layers"));
  EXPECT_THAT(with([](Question& q) { q.model.kv_heads = 5; }), HasSubstr("5 KV heads do not divide 32 heads"));
  EXPECT_THAT(with([](Question& q) { q.model.head_dim = 1.5; }), HasSubstr("--head-dim"));
  EXPECT_THAT(with([](Question& q) { q.model.parameters = 1e30; }), HasSubstr("parameters"));
  EXPECT_THAT(with([](Question& q) { q.model.active_parameters = 9e12; }), HasSubstr("more than all"));
  EXPECT_THAT(with([](Question& q) { q.gpus = 0; }), HasSubstr("--gpus"));
  EXPECT_THAT(with([](Question& q) { q.batch = 1.5; }), HasSubstr("--batch"));
  EXPECT_THAT(with([](Question& q) { q.context = std::numeric_limits<double>::quiet_NaN(); }), HasSubstr("--context"));
  EXPECT_THAT(with([](Question& q) { q.prompt = 8193; }), HasSubstr("longer than --context"));
  EXPECT_THAT(with([](Question& q) { q.tokens_per_second = -1; }), HasSubstr("--tokens-per-second"));
  EXPECT_EQ(refusal(about("llama-3-8b", "h200")), "accepted");
}

TEST(Precision, IsReadFromItsName) {
  EXPECT_EQ(parse_precision("BF16"), NumberType::bf16);
  EXPECT_EQ(bytes_per_element(parse_precision("fp4")), 0.5 + 1.0 / 16);
  EXPECT_THROW(parse_precision("bf17"), base::Error);
  EXPECT_THROW(parse_precision(""), base::Error);
}

}  // namespace
}  // namespace aisp::knowledge
