// SPDX-License-Identifier: Apache-2.0
#include "profile/audit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp::profile {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Activity kernel(const char* name, std::uint64_t start_us, std::uint64_t end_us, std::uint32_t stream = 7, int device = 0) {
  return {Activity::Kind::kernel, start_us * 1000, end_us * 1000, device, stream, name, 0};
}

Activity own_kernel(const char* name, std::uint64_t start_us, std::uint64_t end_us) {
  Activity activity = kernel(name, start_us, end_us);
  activity.own = true;
  return activity;
}

std::vector<Activity> framed_by_sample(std::vector<Activity> work) {
  work.insert(work.begin(), own_kernel("_Z17aisp_sample_beginv", 10, 11));
  work.push_back(own_kernel("_Z15aisp_sample_endv", 100, 101));
  return work;
}

TEST(Audit, HonestWorkHasNoFindings) {
  const Audit result = audit(framed_by_sample({kernel("a", 12, 40), kernel("b", 30, 60, 8), kernel("c", 80, 99)}), {0});
  EXPECT_THAT(result.findings, IsEmpty());
  EXPECT_EQ(result.timeline.kernels, 3u);
  EXPECT_EQ(result.timeline.span_ns, 87000u);
  EXPECT_EQ(result.timeline.busy_ns, 48000u + 19000u);
}

TEST(Audit, TellsWhatWasCompiled) {
  std::vector<Activity> work{kernel("_ZN4aisp4ch083addEPf", 12, 13), kernel("_ZN4aisp4ch083addEPf", 14, 15),
                             kernel("_Z4busyv", 16, 17)};
  work[0].shape = work[1].shape = {.registers = 40, .local_bytes = 16};
  work[2].shape = {.registers = 255};
  EXPECT_THAT(audit(framed_by_sample(work), {0}).compiled,
              ElementsAre(CompiledKernel{"add", 40, 16}, CompiledKernel{"busy", 255, 0}));
}

TEST(Audit, WorkThatOutlivesTheSampleIsFound) {
  EXPECT_THAT(audit(framed_by_sample({kernel("hidden", 50, 160, 9)}), {0}).findings,
              ElementsAre(HasSubstr("kernel hidden on stream 9 ended 60 us after")));
}

TEST(Audit, WorkThatBeganEarlierIsFound) {
  EXPECT_THAT(audit(framed_by_sample({kernel("early", 2, 50, 9)}), {0}).findings,
              ElementsAre(HasSubstr("started 9 us before the sample")));
}

// The pair has come to rest at 2 us; the harness works until 8 us, and the run begins at 11 us.
TEST(Audit, KernelsBeforeTheRunAreFoundFromWhenThePairHadRest) {
  const Before before{.rested_ns = 2000, .ready_ns = 8000};
  EXPECT_THAT(audit(framed_by_sample({kernel("of_its_reset", 0, 2)}), {0}, before).findings, IsEmpty());
  EXPECT_THAT(audit(framed_by_sample({kernel("ahead", 4, 6, 9)}), {0}, before).findings,
              ElementsAre(HasSubstr("kernel ahead on stream 9 started 7 us before the sample")));
  EXPECT_THAT(audit(framed_by_sample({own_kernel("_ZN4aisp4pair3gpu4fillEv", 4, 6)}), {0}, before).findings, IsEmpty());
}

TEST(Audit, KernelsWithNamesOfTheHarnessAreAPairs) {
  EXPECT_THAT(audit(framed_by_sample({kernel("_ZN4aisp4pair3gpu4fillEv", 4, 6)}), {0}).findings,
              ElementsAre(HasSubstr("started 7 us before the sample")));
  EXPECT_THAT(audit(framed_by_sample({kernel("_Z15aisp_sample_endv", 102, 160)}), {0}).findings,
              ElementsAre(HasSubstr("aisp_sample_endv on stream 7 ended 60 us after")));
}

TEST(Audit, CopiesBeforeTheRunAreFoundFromWhenTheHarnessHadRest) {
  const Before before{.rested_ns = 2000, .ready_ns = 5000};
  const auto copy = [](std::uint64_t start_us, std::uint64_t end_us) {
    return Activity{Activity::Kind::memcpy, start_us * 1000, end_us * 1000, 0, 7, "", 64};
  };
  EXPECT_THAT(audit(framed_by_sample({copy(3, 4)}), {0}, before).findings, IsEmpty());
  EXPECT_THAT(audit(framed_by_sample({copy(6, 7)}), {0}, before).findings,
              ElementsAre(HasSubstr("a copy of 64 bytes on stream 7 started")));
}

TEST(KernelsBegun, AreThoseOfOthersThatBeganSince) {
  const std::vector<Activity> activities{own_kernel("_ZN4aisp4pair3gpu4fillEv", 1, 20),
                                         kernel("before", 2, 30),
                                         kernel("running", 0, 0),
                                         kernel("since", 12, 13),
                                         own_kernel("_ZN4aisp4pair3gpu3setEv", 14, 15),
                                         kernel("_Z10aisp_evictv", 16, 17)};
  EXPECT_THAT(kernels_begun(activities, 10'000), ElementsAre("running", "since", "aisp_evict"));
}

TEST(Audit, AnotherGpuIsFoundUnlessItIsThePairs) {
  const auto activities = framed_by_sample({kernel("elsewhere", 20, 30, 3, 1)});
  EXPECT_THAT(audit(activities, {0}).findings, ElementsAre(HasSubstr("ran on GPU 1")));
  EXPECT_THAT(audit(activities, {0, 1}).findings, IsEmpty());
}

TEST(Audit, WithoutItsFrameNothingIsVouchedFor) { EXPECT_EQ(audit({kernel("a", 1, 2)}, {0}).findings.size(), 1u); }

}  // namespace
}  // namespace aisp::profile
