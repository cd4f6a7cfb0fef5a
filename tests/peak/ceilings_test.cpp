// SPDX-License-Identifier: Apache-2.0
#include "peak/record.hpp"

#include <gmock/gmock.h>

#include <cstdlib>

#include "base/system/files.hpp"

namespace aisp::peak {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr auto bf16 = static_cast<std::size_t>(Math::bf16);
constexpr auto fp8 = static_cast<std::size_t>(Math::fp8);

machine::Gpu h200() {
  machine::Gpu gpu;
  gpu.uuid = "GPU-1";
  gpu.name = "NVIDIA H200";
  gpu.sm = 90;
  gpu.sm_count = 132;
  gpu.clock_khz = 1'980'000;
  return gpu;
}

PeakRecord measured(std::vector<Figure> figures) {
  return {.key = key_of(h200(), "580.159"), .measured_utc = "2026-11-21T10:00:00Z", .figures = std::move(figures)};
}

TEST(MeasuredOver, MeasuredReplacesRecordedAndTheSourceSaysSo) {
  machine::Ceilings known;
  known.copy_bytes_s = 4e12;
  known.flops_s[bf16] = 7e14;
  known.peer_bytes_s = 3e11;
  known.source = "provisional: recorded";
  const PeakRecord record = measured({{.id = "hbm_copy", .value = 4.1e12}, {.id = "bf16", .value = 8e14}});
  const machine::Ceilings merged = measured_over(known, record, false);
  EXPECT_EQ(merged.copy_bytes_s, 4.1e12);
  EXPECT_EQ(merged.flops_s[bf16], 8e14);
  EXPECT_EQ(merged.source, "measured by aisp peak 2026-11-21") << "one GPU has no peers to miss";
  EXPECT_EQ(merged.from.flops[bf16], base::CeilingFrom::measured);
  EXPECT_EQ(merged.from.flops[fp8], base::CeilingFrom::guess) << "each type by itself";
  EXPECT_EQ(merged.from.memory, base::CeilingFrom::guess) << "the rate of reading was not measured";
  EXPECT_THAT(measured_over(known, record, true).source, HasSubstr("provisional: recorded"));
}

TEST(MeasuredOver, WhatFailedKeepsTheRecordedValue) {
  machine::Ceilings known;
  known.flops_s[fp8] = 1e15;
  known.source = "provisional";
  const machine::Ceilings merged =
      measured_over(known, measured({{.id = "hbm_copy", .value = 4e12}, {.id = "fp8", .why_not = "no cuBLASLt"}}), false);
  EXPECT_EQ(merged.flops_s[fp8], 1e15);
  EXPECT_EQ(merged.source, "measured by aisp peak 2026-11-21; what it could not measure: provisional");
}

TEST(MeasuredOver, ARecordWithoutValuesChangesNothing) {
  machine::Ceilings known;
  known.source = "provisional";
  EXPECT_EQ(measured_over(known, measured({{.id = "fp8", .why_not = "no"}}), false).source, "provisional");
}

TEST(BestKnown, TakesTheCachedRecordOfThisDriverOnly) {
  const base::ScratchDirectory home;
  setenv("XDG_CACHE_HOME", home.path().c_str(), 1);
  EXPECT_THAT(best_known(h200(), "580.159", false).source, HasSubstr("provisional"));
  store(home.path() / "aisp", measured({{.id = "hbm_copy", .value = 4.3e12}}));
  EXPECT_EQ(best_known(h200(), "580.159", false).copy_bytes_s, 4.3e12);
  EXPECT_THAT(best_known(h200(), "580.159", false).source, HasSubstr("measured by aisp peak 2026-11-21"));
  EXPECT_THAT(best_known(h200(), "590.1", false).source, Not(HasSubstr("measured by")));
  machine::Host host;
  host.cpu = "CPU";
  host.cpus_usable = 8;
  EXPECT_EQ(best_known(host).host_copy_bytes_s, 0);
  store(home.path() / "aisp",
        PeakRecord{.key = key_of(host), .measured_utc = "2026-11-21T10:00:00Z", .figures = {{.id = "host_copy", .value = 2e11}}});
  EXPECT_EQ(best_known(host).host_copy_bytes_s, 2e11);
  unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace aisp::peak
