// SPDX-License-Identifier: Apache-2.0
#include "run/child/audit/timeline_metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace aisp::run {
namespace {

using evidence::Direction;
using evidence::Metric;
using testing::DoubleEq;
using testing::ElementsAre;

std::vector<AuditedRun> audited(const std::vector<profile::Timeline>& timelines) {
  std::vector<AuditedRun> runs;
  for (const profile::Timeline& timeline : timelines) runs.emplace_back().audit.timeline = timeline;
  return runs;
}

const Metric* named(const std::vector<Metric>& metrics, const std::string& name) {
  const auto found = std::ranges::find(metrics, name, &Metric::name);
  return found == metrics.end() ? nullptr : &*found;
}

constexpr profile::Timeline pipelined{.span_ns = 100'000,
                                      .busy_ns = 90'000,
                                      .kernel_ns = 60'000,
                                      .kernels_ns = 90'000,
                                      .link_ns = 50'000,
                                      .hidden_ns = 40'000,
                                      .kernels = 12,
                                      .copies = 4};

void expect(const std::vector<Metric>& metrics, const std::string& name, double median, const std::string& unit,
            Direction better) {
  const Metric* metric = named(metrics, name);
  ASSERT_NE(metric, nullptr) << name;
  EXPECT_DOUBLE_EQ(metric->summary.median, median) << name;
  EXPECT_EQ(metric->unit, unit) << name;
  EXPECT_EQ(metric->better, better) << name;
}

TEST(TimelineMetrics, SayHowWorkLiesInTime) {
  const std::vector<Metric> metrics = timeline_metrics(audited({pipelined}), 0);
  expect(metrics, "overlap", 80, "%", Direction::higher);
  expect(metrics, "concurrency", 1.5, "", Direction::higher);
  expect(metrics, "idle", 10, "us", Direction::lower);
  expect(metrics, "idle_share", 10, "%", Direction::lower);
  expect(metrics, "kernels", 12, "", Direction::lower);
  expect(metrics, "copies", 4, "", Direction::lower);
}

TEST(TimelineMetrics, TakeTheMedianOfTheExecutions) {
  profile::Timeline first = pipelined;
  first.busy_ns = 20'000;  // the recorder's first
  const std::vector<Metric> metrics = timeline_metrics(audited({first, pipelined, pipelined}), 0);
  EXPECT_THAT(named(metrics, "idle")->raw, ElementsAre(DoubleEq(80), DoubleEq(10), DoubleEq(10)));
  EXPECT_DOUBLE_EQ(named(metrics, "idle")->summary.median, 10);
}

TEST(TimelineMetrics, OfWhatIsNotThereNothingIsSaid) {
  const std::vector<Metric> kernels =
      timeline_metrics(audited({{.span_ns = 10, .busy_ns = 10, .kernel_ns = 10, .kernels_ns = 10, .kernels = 1}}), 0);
  EXPECT_EQ(named(kernels, "overlap"), nullptr) << "without copies nothing could have been hidden";
  EXPECT_EQ(named(kernels, "copies"), nullptr);
  expect(kernels, "idle", 0, "us", Direction::lower);
  const std::vector<Metric> copies = timeline_metrics(audited({{.span_ns = 10, .busy_ns = 10, .link_ns = 10, .copies = 1}}), 0);
  EXPECT_EQ(named(copies, "concurrency"), nullptr);
  expect(copies, "overlap", 0, "%", Direction::higher);
  EXPECT_TRUE(timeline_metrics(audited({{}}), 0).empty());
}

TEST(TimelineMetrics, WhatTheRecorderAddsIsNotIdle) {
  const std::vector<Metric> shorter = timeline_metrics(audited({pipelined}), 0.095);
  expect(shorter, "idle", 5, "us", Direction::lower);
  expect(shorter, "idle_share", 100 * 5.0 / 95, "%", Direction::lower);
  const std::vector<Metric> busier = timeline_metrics(audited({pipelined}), 0.080);
  expect(busier, "idle", 0, "us", Direction::lower);
  const std::vector<Metric> longer = timeline_metrics(audited({pipelined}), 0.200);
  expect(longer, "idle", 10, "us", Direction::lower);
}

}  // namespace
}  // namespace aisp::run
