// SPDX-License-Identifier: Apache-2.0
// The trace's lengths, prefixes and planted requests, and pages that are taken, shared and given back.
#include <decoder/pages.hpp>
#include <decoder/trace.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace aisp::decoder {
namespace {

TEST(Trace, HasTheLengthsOfItsDistributions) {
  const Trace trace;
  double prompts = 0, outputs = 0, gaps = 0;
  int below = 0, at_limit = 0;
  for (int i = 0; i < Trace::requests; ++i) {
    const Request r = trace.request(i);
    prompts += r.prompt, outputs += r.output, gaps += r.gap;
    below += r.prompt < 1020, at_limit += r.prompt == 4096;
    EXPECT_GE(r.prompt, 1);
    EXPECT_LE(r.output, 1024);
    EXPECT_LE(r.own, r.prompt);
  }
  EXPECT_NEAR(prompts / Trace::requests, 1390, 60);
  EXPECT_NEAR(outputs / Trace::requests, 203, 15);
  EXPECT_NEAR(gaps / Trace::requests, 1, 0.05);
  EXPECT_NEAR(below, Trace::requests / 2, 100);
  EXPECT_GT(at_limit, Trace::requests / 100);
}

TEST(Trace, PromptsOfAConversationBeginAlike) {
  const Trace trace;
  int pairs = 0;
  for (int a = Trace::planted; a < 200; ++a)
    for (int b = a + 1; b < 200; ++b) {
      const Request first = trace.request(a), second = trace.request(b);
      if (first.conversation != second.conversation) continue;
      const int common = std::min(first.prompt - first.own, second.prompt - second.own);
      for (int i = 0; i < common; ++i) ASSERT_EQ(Trace::token(7, first, i, 4096), Trace::token(7, second, i, 4096));
      pairs += common > 0;
    }
  EXPECT_GT(pairs, 100);
}

TEST(Trace, LongRequestsStayLongUnderAnotherMedian) {
  const Trace one, other{{16, 0.8, 1, 64}};
  for (int i = 20; i < 100; ++i)
    for (int j = 20; j < 100; ++j) {
      if (one.request(i).prompt >= one.request(j).prompt) continue;
      EXPECT_LE(other.request(i).prompt, other.request(j).prompt);
    }
}

TEST(Trace, PlantedRequestsReachTheBorders) {
  const Trace trace{{16, 0.8, 1, 64}, {16, 0.8, 1, 64}};
  EXPECT_EQ(trace.request(0).prompt, 1);
  EXPECT_EQ(trace.request(7).prompt, 64);
  EXPECT_EQ(trace.request(8).output, 1);
  EXPECT_EQ(trace.request(9).output, 64);
  EXPECT_EQ(trace.request(10).output, trace.request(11).output);
  const Request prefix = trace.request(12), longer = trace.request(13), twin = trace.request(14), other = trace.request(15);
  ASSERT_LT(prefix.prompt, longer.prompt);
  for (int i = 0; i < prefix.prompt; ++i) EXPECT_EQ(Trace::token(1, prefix, i, 1000), Trace::token(1, longer, i, 1000));
  ASSERT_EQ(twin.prompt, other.prompt);
  for (int i = 0; i < twin.prompt; ++i) EXPECT_EQ(Trace::token(1, twin, i, 1000), Trace::token(1, other, i, 1000));
}

TEST(Pages, AreGivenBackOnce) {
  PageAllocator pages{10, 3};
  PageTable table{pages, 3, 8};
  EXPECT_TRUE(table.grow(0, 33));
  EXPECT_EQ(table.count(0), 3);
  EXPECT_TRUE(table.grow(0, 48));
  EXPECT_EQ(pages.available(), 7);
  table.share(1, 0, 2);
  EXPECT_EQ(pages.holders(table.page(0, 0)), 2);
  EXPECT_FALSE(table.grow(2, 8 * 16));
  EXPECT_EQ(table.count(2), 0);
  table.release(0);
  EXPECT_EQ(pages.available(), 8);
  table.shrink(1, 16);
  EXPECT_EQ(table.count(1), 1);
  EXPECT_EQ(table.page(1, 1), PageTable::none);
  table.release(1);
  EXPECT_EQ(pages.available(), 10);
  std::set<int> all;
  for (int page = pages.take(); page >= 0; page = pages.take()) all.insert(page);
  EXPECT_EQ(all.size(), 10u);
  pages.release(0);
  EXPECT_THROW(pages.release(0), std::logic_error);
  EXPECT_THROW(pages.share(0), std::logic_error);
}

TEST(Pages, RequestsOfThePagedPairFitIntoItsBudget) {
  const Trace trace{{512, 0.55, 128, 1536}};
  int pages = 0;
  for (int i = 0; i < 96; ++i) pages += pages_for(trace.request(Trace::planted + i).prompt + 8);
  EXPECT_LE(pages * page_rows, 65536);
}

TEST(Pages, ARequestTooManyIsRefusedWithBothNumbers) {
  const std::vector<int> tokens{1, 8, 9, 40};
  EXPECT_NO_THROW(refuse_unless(Fit{tokens, 8, 1 + 1 + 2 + 3}));
  try {
    refuse_unless(Fit{tokens, 8, 6});
    FAIL() << "seven pages fit into six";
  } catch (const Unsupported& refused) {
    EXPECT_STREQ(refused.what(), "the requests need 7 pages of 16 tokens at once, and the cache has 6");
  }
}

}  // namespace
}  // namespace aisp::decoder
