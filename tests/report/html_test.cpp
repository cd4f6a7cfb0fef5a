// SPDX-License-Identifier: Apache-2.0
#include "report/html.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "report/code_parts.hpp"
#include "report/code_tokens.hpp"
#include "report/html_text.hpp"
#include "sample_suite.hpp"

namespace aisp::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

HtmlReport sample_report() {
  HtmlReport report;
  report.run.manifest = sample::manifest();
  report.run.pairs = sample::suite().pairs;
  report.throttle_text = [](std::uint64_t bits) { return bits == 4 ? std::string{"software power cap"} : std::string{}; };
  return report;
}

// Elements alone, without the values of their attributes: a pattern that has to pass over kilobytes takes a frame of the stack
// for each character, which is more than the address sanitizer leaves.
std::string elements_of(std::string page) {
  for (const std::string name : {"style", "script"})
    for (std::size_t at = 0; (at = page.find("<" + name + ">")) != std::string::npos;) {
      const std::string end = "</" + name + ">";
      page.erase(at, page.find(end, at) + end.size() - at);
    }
  std::string elements;
  bool inside = false, quoted = false;
  for (const char c : page) {
    if (!inside) inside = c == '<';
    else if (c == '"') quoted = !quoted;
    else if (c == '>' && !quoted) inside = false;
    if (!quoted) elements += c;
  }
  return elements;
}

// Every element that is opened is closed, in the right order.
void expect_balanced(const std::string& page) {
  const std::string body = elements_of(page);
  static const std::regex mark{"<(/?)([a-zA-Z][a-zA-Z0-9]*)([^<>]*)>"};
  std::vector<std::string> open;
  EXPECT_GT(std::distance(std::sregex_iterator{body.begin(), body.end(), mark}, {}), 100);
  for (std::sregex_iterator m{body.begin(), body.end(), mark}, end; m != end; ++m) {
    const std::string name = (*m)[2], rest = (*m)[3];
    if (name == "meta" || name == "input" || name == "br" || (!rest.empty() && rest.back() == '/')) continue;
    if ((*m)[1].length() == 0) {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << m->position();
    ASSERT_EQ(open.back(), name) << "near "
                                 << body.substr(static_cast<std::size_t>(std::max<std::ptrdiff_t>(m->position() - 80, 0)), 160);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

TEST(Html, HoldsEveryPairWithItsStatusReasonAndAdvice) {
  const std::string page = html_report(sample_report());
  for (const evidence::PairResult& pair : sample::suite().pairs) {
    EXPECT_THAT(page, HasSubstr("id=\"" + html::id_of(pair.target) + "\""));
    EXPECT_THAT(page, HasSubstr(html::escaped(pair.reason)));
  }
  EXPECT_THAT(page, HasSubstr("look at the edges"));
  EXPECT_THAT(page, HasSubstr("stage measurement ran 15 s of 15 s allowed"));
  EXPECT_THAT(page, HasSubstr("Held back by software power cap in 1 of 1 round."));
  EXPECT_THAT(page, HasSubstr("7.72x"));
  expect_balanced(page);
}

TEST(Html, APairThatFailedHasNoSpeedup) {
  HtmlReport report = sample_report();
  std::erase_if(report.run.pairs, [](const evidence::PairResult& pair) { return pair.status == evidence::Status::passed; });
  EXPECT_THAT(html_report(report), Not(HasSubstr("7.72x")));
}

TEST(Html, NamesWhatWasSelectedButHasNoResult) {
  HtmlReport report = sample_report();
  report.run.manifest.targets = {"ch07:transpose", "ch08:never_ran"};
  EXPECT_THAT(html_report(report), HasSubstr("Selected but without a result: ch08:never_ran."));
}

TEST(Html, HostileTextStaysText) {
  const std::string evil = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>\x01\xff";
  HtmlReport report = sample_report();
  report.run.manifest.run_id = report.run.manifest.cpu = report.run.manifest.commit = evil;
  report.run.manifest.environment[evil] = evil;
  report.run.manifest.configuration = {{evil, evil, evil}};
  report.run.warnings = {evil};
  for (evidence::PairResult& pair : report.run.pairs) {
    pair.target += evil;
    pair.chapter = pair.name = pair.teaches = pair.reason = pair.stopped_because = pair.best = evil;
    pair.lost = pair.warnings = {evil};
    pair.problems = {{evil, evil, evil, evil, evil}};
    for (evidence::VariantResult& variant : pair.variants) {
      variant.name = variant.reason = evil;
      variant.floor = evidence::Floor{.limiter = evil, .ceiling = evil, .held_back_by = evil};
    }
    report.sources[pair.target].files = {{evil, "// " + evil + "\n__global__ void k() {}\n"}};
  }
  const std::string page = html_report(report);
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_EQ(page.find_first_of("\x01\xff"), std::string::npos);
  expect_balanced(page);
}

TEST(Html, NumbersThatAreNoneDrawNothingWrong) {
  HtmlReport report = sample_report();
  evidence::PairResult& pair = report.run.pairs[0];
  pair.variants[0].timing->raw_times_ms = {NAN, INFINITY, 1e308, -1e308, 0};
  pair.variants[1].timing->raw_times_ms = {NAN};
  pair.gpu_states.push_back({.sm_clock_mhz = 1, .power_w = NAN});
  const std::string page = html_report(report);
  static const std::regex wrong{"(points|d|x|width)=\"[^\"]*(nan|inf)"};
  EXPECT_FALSE(std::regex_search(page, wrong));
  EXPECT_THAT(page, HasSubstr("3 samples, 2 not finite"));
}

TEST(Html, LoadsNothingAndAllowsNothing) {
  const std::string page = html_report(sample_report());
  EXPECT_THAT(page, HasSubstr("default-src 'none'; style-src 'sha256-"));
  EXPECT_FALSE(std::regex_search(page, std::regex{"(src|href)=\"(https?:|//)"}));
  EXPECT_FALSE(std::regex_search(page, std::regex{" (style|on[a-z]+)=\""}));
}

TEST(Html, TheShadeIsTheIntervalThatCompareUses) {
  HtmlReport report = sample_report();
  evidence::Timing& timing = *report.run.pairs[0].variants[0].timing;
  timing.offset_ms = timing.clock_step_ms = 0;
  timing.raw_times_ms.clear();
  for (int i = 1; i <= 20; ++i) timing.raw_times_ms.push_back(i);
  timing.summary.median = 10.5;
  EXPECT_THAT(html_report(report), HasSubstr("interval 6.00 ms to 15.0 ms"));  // ranks 6 and 15 cover 95.9 %
  timing.raw_times_ms.resize(5);
  EXPECT_THAT(html_report(report), Not(HasSubstr("interval 1 ms to 5 ms")));
}

constexpr const char* code = R"code(#include <aisp/pair.hpp>
namespace aisp::ch07 {
namespace {
// Not this one.

// Reads { rows }.
template <class T>
__global__ __launch_bounds__(256) void slow_kernel(T* out) { if (out) { out[0] = 1; } }
__device__ int twice(int x) { return 2 * x; }
__global__ void fast_kernel(int* out) { out[0] = twice(1); }
class Thing final : public Workload {
 public:
  explicit Thing(Setup& setup) : a_{setup.a()}, b_{1} {}
  // Launches.
  void slow(Launch& launch) { slow_kernel<<<1, 1>>>(out_); check(0); }
  void fast(Launch&) { fast_kernel<<<1, 1>>>(out_); }
  template <int n>
  void many(Launch&) { twice(n); }
};
}
extern constinit const Pair thing{
    .baseline = {.name = "slow", .run = call<&Thing::slow>},
    .optimized = variants({{.name = "fast", .run = call<&Thing::fast>}, {.name = "many", .run = call<&Thing::many<3>>}}),
};
}
)code";

std::vector<std::string> names(const std::vector<CodePart>& parts) {
  std::vector<std::string> result;
  for (const CodePart& part : parts) result.push_back(part.name);
  return result;
}

TEST(CodeParts, WhatAVariantIsMadeOf) {
  const std::vector<SourceText> files{{"chapters/ch07/thing.cu", code}};
  EXPECT_THAT(names(parts_of_variant(files, "slow")), ElementsAre("slow_kernel", "slow"));
  EXPECT_THAT(names(parts_of_variant(files, "fast")), ElementsAre("twice", "fast_kernel", "fast"));
  EXPECT_THAT(names(parts_of_variant(files, "many")), ElementsAre("twice", "many"));
  EXPECT_TRUE(parts_of_variant(files, "other").empty());
  const CodePart kernel = parts_of_variant(files, "slow").front();
  EXPECT_TRUE(kernel.is_kernel);
  EXPECT_EQ(kernel.line, 6);
  EXPECT_EQ(kernel.text.rfind("// Reads { rows }.\n", 0), 0u) << kernel.text;
  EXPECT_THAT(names(kernels_of(files[0])), ElementsAre("slow_kernel", "fast_kernel"));
}

TEST(CodeTokens, CoverTheSourceWhateverItIs) {
  for (const std::string source :
       {code, "\"open", "R\"(open", "/* open", "#define a \\", "'", "{{{", "}}}", "template <", "R\"", "\\"}) {
    std::size_t at = 0;
    for (const Token& token : tokens_of(source)) {
      EXPECT_EQ(token.begin, at);
      EXPECT_GT(token.end, token.begin);
      at = token.end;
    }
    EXPECT_EQ(at, source.size()) << source;
    parts_of_variant({{"x", source}}, "slow");
  }
  EXPECT_EQ(highlighted("int x; // <b>"), "<i class=\"k\">int</i> x; <i class=\"c\">// &lt;b&gt;</i>");
}

}  // namespace
}  // namespace aisp::report
