// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/markdown.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/console.hpp"
#include "report/html/html.hpp"
#include "report/opened_page.hpp"
#include "report/sample_suite.hpp"

namespace aisp::report {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

evidence::PairResult profiled_pair() {
  evidence::PairResult pair = sample::passed_pair();
  evidence::Profile slow, fast;
  slow.span_ms = slow.busy_ms = slow.kernel_ms = 4.2;
  slow.launches = 3;
  slow.kernels = {evidence::KernelProfile{.name = "direct<float | 3>",
                                          .count = 3,
                                          .total_ms = 4.2,
                                          .mean_ms = 1.4,
                                          .share_percent = 100,
                                          .grid = {512, 512, 1},
                                          .grids = 2,
                                          .block = {256, 1, 1},
                                          .registers = 40,
                                          .static_shared_bytes = 4224,
                                          .dynamic_shared_bytes = 1024,
                                          .occupancy_percent = 75,
                                          .occupancy_limit = "registers",
                                          .waves = 12.4}};
  slow.copies = {
      {.direction = "pinned host to device", .count = 2, .bytes = 1 << 20, .total_ms = 0.02, .bytes_per_second = 52.4e9}};
  slow.synchronizations = {{"stream", 2, 0.5}, {evidence::stream_wait, 7, 0.1}};
  slow.calls = {{"cudaLaunchKernel", 3, 0.012}};
  fast.span_ms = fast.busy_ms = fast.kernel_ms = 0.5;
  fast.launches = 1;
  pair.variants[0].profile = slow;
  pair.variants[1].profile = fast;
  return pair;
}

TEST(ProfileTables, ShowWhatAVariantDid) {
  const std::string text = profile_markdown(profiled_pair());
  EXPECT_THAT(text, HasSubstr("launches 3 -> 1, kernel time 4.20 ms -> 500 us, bytes copied 1 MiB -> 0 B, copies 2 -> 0."));
  EXPECT_THAT(text, HasSubstr("direct&lt;float \\| 3>")) << "a bar in a name does not end its cell";
  EXPECT_THAT(text, HasSubstr("| 512 x 512 and 1 more | 256 |"));
  EXPECT_THAT(text, HasSubstr("75 % (registers)"));
  EXPECT_THAT(text, HasSubstr("| direct | pinned host to device | 2 | 1 MiB |"));
  EXPECT_THAT(text, HasSubstr("| direct | cudaLaunchKernel | 3 |"));
  for (const ProfileTable& table : profile_tables(profiled_pair()))
    for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.rows.front().size()) << table.title;
}

TEST(ProfileTables, AStreamsWaitIsNoneOfTheHost) {
  for (const ProfileTable& table : profile_tables(profiled_pair())) {
    if (table.title != "Host side") continue;
    EXPECT_EQ(table.rows.at(1).at(4), "2");
    return;
  }
  FAIL() << "no table of the host's side";
}

TEST(ProfileTables, NothingWithoutAProfile) {
  EXPECT_THAT(profile_tables(sample::passed_pair()), IsEmpty());
  EXPECT_EQ(profile_markdown(sample::passed_pair()), "");
  EXPECT_THAT(pair_markdown(sample::passed_pair()), Not(HasSubstr("Profile")));
}

TEST(ProfileTables, TheSentenceStandsBelowThePairsLineAndInItsPages) {
  const std::string sentence = "launches 3 -> 1, kernel time 4.20 ms -> 500 us, bytes copied 1 MiB -> 0 B, copies 2 -> 0";
  EXPECT_THAT(pair_line(profiled_pair(), base::Painter{}), testing::EndsWith("\n  " + sentence));
  EXPECT_THAT(pair_markdown(profiled_pair()), HasSubstr(sentence));
  HtmlReport report;
  report.run.pairs = {profiled_pair()};
  const std::string page = opened(html_report(report));
  EXPECT_THAT(page, HasSubstr("launches 3 -&gt; 1, kernel time 4.20 ms -&gt; 500 \u00b5s"));
  EXPECT_THAT(page, HasSubstr("theoretical occupancy"));
  EXPECT_THAT(page, HasSubstr("direct&lt;float | 3&gt;"));
}

TEST(ProfileTables, ALostProfileIsSaidOnce) {
  evidence::PairResult pair = sample::passed_pair();
  pair.lost = {{evidence::LostKind::profile, "no profile: CUPTI is missing"}};
  EXPECT_THAT(pair_line(pair, base::Painter{}), testing::EndsWith("\n  no profile: CUPTI is missing"));
}

}  // namespace
}  // namespace aisp::report
