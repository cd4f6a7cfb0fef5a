// SPDX-License-Identifier: Apache-2.0
#include "report/html/html.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "opened_page.hpp"
#include "report/html/parts.hpp"
#include "report/html/text.hpp"
#include "report/pictures/bar_picture.hpp"
#include "report/public_run.hpp"
#include "sample_suite.hpp"

namespace aisp::report {
namespace {

using testing::HasSubstr;
using testing::Not;

HtmlReport sample_report() {
  HtmlReport report;
  report.run.manifest = sample::manifest();
  report.run.pairs = sample::suite().pairs;
  report.throttle_text = [](std::uint64_t bits) { return bits == 4 ? std::string{"software power cap"} : std::string{}; };
  return report;
}

std::string shown(const HtmlReport& report) { return opened(html_report(report)); }

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
    if (name == "meta" || name == "input" || name == "br" || name == "wbr" || (!rest.empty() && rest.back() == '/')) continue;
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
  const std::string page = shown(sample_report());
  for (const evidence::PairResult& pair : sample::suite().pairs) {
    EXPECT_THAT(page, HasSubstr("id=\"" + html::id_of(pair.target) + "\""));
    EXPECT_THAT(page, HasSubstr(html::escaped(pair.reason)));
  }
  EXPECT_THAT(page, HasSubstr("look at the edges"));
  EXPECT_THAT(page, HasSubstr("stage measurement ran 15 s of 15 s allowed"));
  EXPECT_THAT(page, HasSubstr("The clock was limited by software power cap in 1 of 1 round."));
  EXPECT_THAT(page, HasSubstr("7.72x"));
  expect_balanced(page);
}

TEST(Html, APageAndAPictureShowTheMicroSign) {
  const std::string page = shown(sample_report());
  EXPECT_THAT(page, HasSubstr("<td>571.0 \u00b5s</td>"));
  EXPECT_THAT(page, Not(HasSubstr("750 us")));
  const svg::Picture picture{"about 5 us", 10, 10, svg::text("small", 0, 0, "255 us, 7 users")};
  for (const std::string& drawn : {svg::alone(picture), svg::in_page(picture)}) {
    EXPECT_THAT(drawn, HasSubstr("about 5 \u00b5s"));
    EXPECT_THAT(drawn, HasSubstr(">255 \u00b5s, 7 users<"));
  }
}

TEST(Html, TheSameRunMakesTheSameBytes) { EXPECT_TRUE(html_report(sample_report()) == html_report(sample_report())); }

TEST(Html, APairThatFailedHasNoSpeedup) {
  HtmlReport report = sample_report();
  std::erase_if(report.run.pairs, [](const evidence::PairResult& pair) { return pair.status == evidence::Status::passed; });
  EXPECT_THAT(shown(report), Not(HasSubstr("7.72x")));
}

// The places of texts in a page, in the order of the page.
void expect_in_order(const std::string& page, const std::vector<std::string>& texts) {
  std::size_t at = 0;
  for (const std::string& text : texts) {
    at = page.find(text, at);
    ASSERT_NE(at, std::string::npos) << text << " is not behind those before it";
  }
}

TEST(Html, ManyPairsThatWereSkippedForOneReasonTakeOneBlock) {
  HtmlReport report = sample_report();
  const evidence::PairResult passed = report.run.pairs[0];
  report.run.pairs.clear();
  for (const auto& [name, reason] : {std::pair{"a", "no CUDA device"}, {"b", "no CUDA device"}, {"c", "needs two GPUs"}}) {
    evidence::PairResult& pair = report.run.pairs.emplace_back(passed);
    pair.chapter = "ch02";
    pair.name = name;
    pair.target = std::string{"ch02:"} + name;
    pair.status = evidence::Status::skipped;
    pair.reason = reason;
    pair.warnings.clear();
    pair.problems.clear();
    pair.lost.clear();
  }
  const std::string page = shown(report);
  const std::string problems = page.substr(page.find("id=\"problems\""));
  expect_in_order(problems, {"2 pairs", "no CUDA device", ">ch02:a<", ">ch02:b<", "1 pair", "needs two GPUs", ">ch02:c<"});
  EXPECT_EQ(problems.find("no CUDA device", problems.find("no CUDA device") + 1), std::string::npos);
}

TEST(Html, PairsStandInTheOrderOfTheirChaptersAndWhatWentWrongComesFirst) {
  HtmlReport report = sample_report();
  const evidence::PairResult passed = report.run.pairs[0];
  report.run.pairs.clear();
  for (const auto& [chapter, name, status] : {std::tuple{"ch02", "skipped", evidence::Status::skipped},
                                              {"ch02", "warned", evidence::Status::passed},
                                              {"ch01", "skipped", evidence::Status::skipped},
                                              {"ch01", "warned", evidence::Status::passed},
                                              {"ch03", "failed", evidence::Status::failed}}) {
    evidence::PairResult pair = passed;
    pair.chapter = chapter;
    pair.name = name;
    pair.target = std::string{chapter} + ":" + name;
    pair.status = status;
    pair.warnings = {"mind the gap"};
    report.run.pairs.push_back(pair);
  }
  const std::string page = shown(report);
  const auto id = [](const std::string& target) { return "id=\"" + html::id_of(target) + "\""; };
  expect_in_order(page, {id("ch01:warned"), id("ch01:skipped"), id("ch02:warned"), id("ch02:skipped"), id("ch03:failed")});
  expect_in_order(page.substr(page.find("id=\"problems\"")),
                  {">ch03:failed<", "5 pairs", "mind the gap", ">ch01:warned<", "2 pairs", ">ch01:skipped<", ">ch02:skipped<"});
  EXPECT_THAT(page, HasSubstr("<a href=\"#problems\">No result</a>: <a href=\"#" + html::id_of("ch03:failed")));
}

TEST(Html, WhyAVariantWasNotTimedTakesThePlaceOfItsFigures) {
  HtmlReport report = sample_report();
  evidence::VariantResult& variant = report.run.pairs[0].variants[1];
  variant.timing.reset();
  variant.speedup.reset();
  variant.status = evidence::Status::skipped;
  variant.reason = "needs what is not here";
  EXPECT_THAT(shown(report),
              HasSubstr("<td colspan=\"7\"><span class=\"badge skipped\">skipped</span> needs what is not here</td></tr>"));
}

TEST(Html, NamesWhatWasSelectedButHasNoResult) {
  HtmlReport report = sample_report();
  report.run.manifest.targets = {"ch07:transpose", "ch08:never_ran"};
  EXPECT_THAT(shown(report), HasSubstr("Selected but without a result: ch08:never_ran."));
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
    pair.chapter = pair.name = pair.teaches = pair.reason = pair.best = evil;
    pair.warnings = {evil};
    pair.lost = {{evidence::LostKind::other, evil}};
    pair.problems = {{evidence::Stage::verify, evil, evil, evil, evil}};
    for (evidence::VariantResult& variant : pair.variants) {
      variant.name = variant.reason = evil;
      variant.floor = evidence::Floor{.limiter = evil, .ceiling = evil, .held_back_by = evil};
    }
    report.sources[pair.target].files = {{evil, "// " + evil + "\n__global__ void k() {}\n"}};
  }
  const std::string page = shown(report);
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
  const std::string page = shown(report);
  static const std::regex wrong{"(points|d|x|width)=\"[^\"]*(nan|inf)"};
  EXPECT_FALSE(std::regex_search(page, wrong));
  EXPECT_THAT(page, HasSubstr("3 samples, 2 not finite"));
}

TEST(Html, EverySideShowsAKernelOrSaysWhyNot) {
  HtmlReport report = sample_report();
  evidence::PairResult& pair = report.run.pairs[0];
  pair.variants[0].name = "plain";
  pair.variants[1].name = pair.lesson = pair.best = "steered";
  PairSource& source = report.sources[pair.target];
  source.add(
      {"chapters/ch07/thing.cu", "__global__ void one_kernel() {}\nclass Thing {\n  void plain();\n  void steered();\n};\n"},
      "kernel 1 1 one_kernel\nfunction 2 1 plain\nfunction 1 1 steered\nvariant plain 110\nvariant steered 101\n");
  const std::string page = shown(report);
  std::size_t kernels = 0;
  const std::size_t begin = page.find("<div class=\"sides\">"), end = page.find("Used by both", begin);
  for (std::size_t at = page.find("badge kernel", begin); at < end; at = page.find("badge kernel", at + 1)) ++kernels;
  EXPECT_EQ(kernels, 2u) << page.substr(begin, 2000);
  EXPECT_THAT(page, HasSubstr("thing.cu:3</span>"));
  EXPECT_THAT(page, HasSubstr("<mark>"));
  source.files[0].functions[0].is_kernel = false;
  EXPECT_THAT(shown(report), HasSubstr("No kernel that these files compile is launched"));
}

TEST(Html, WhatIsPublicNamesNoPlaceAndNobody) {
  evidence::RunRecord run{.manifest = sample::manifest(), .pairs = sample::suite().pairs};
  run.manifest.hostname = "lab7.example.org";
  run.manifest.run_id = "nightly_lab7";
  run.manifest.configuration = {{"run-id", "nightly_lab7", "flag"}};
  run.manifest.library_versions["cublas"] = "13.0.0.19";
  run.manifest.environment["LD_LIBRARY_PATH"] = "/home/ada/lib";
  run.manifest.command_line = {"aisp", "run", "--artifacts-dir", "/home/ada/runs"};
  run.manifest.gpus = {{.name = "NVIDIA H200", .uuid = "GPU-01234567-89ab", .pci = "0000:1b:00.0"}};
  run.manifest.libraries["cublas"] = "/opt/secret/libcublas.so.13";
  run.manifest.environment["TMPDIR"] = "/home/grace/tmp";
  run.pairs[1].warnings = {"nightly_lab7: grace's node at 10.20.30.40:8080, fe80::1, 2001:db8::5. took 10:20:30, std::abs"};
  run.pairs[0].warnings = {"ada saw /tmp/x on lab7 with GPU-01234567-89ab at 3 GB/s, a / b"};
  const evidence::RunRecord copy = public_copy(run, redactor_for(run, {"ada"}));
  HtmlReport report{.run = copy, .is_public = true};
  report.history =
      public_copy({{.target = "ch07:a", .variant = "b", .machine = "lab7", .run_ids = {"monday.lab7", "x"}, .values = {1, 2}}},
                  redactor_for(run, {"ada"}));
  EXPECT_THAT(report.history[0].run_ids, testing::ElementsAre("monday.(removed)", "x"));
  EXPECT_EQ(report.history[0].machine, "");
  const std::string page = shown(report);
  for (const char* secret : {"lab7", "ada", "/home", "/tmp/x", "/opt/", "GPU-0", "0000:1b", "grace", "10.20.30", "fe80", "2001:"})
    EXPECT_THAT(page, Not(HasSubstr(secret)));
  EXPECT_THAT(page, HasSubstr("nightly_(removed)"));
  EXPECT_THAT(page, HasSubstr("libcublas.so.13"));
  EXPECT_THAT(page, HasSubstr("at 3 GB/s, a / b"));
  EXPECT_THAT(page, HasSubstr("took 10:20:30, std::abs"));
  EXPECT_THAT(page, Not(HasSubstr("; , "))) << "no places for what was left out";
  EXPECT_THAT(page, HasSubstr("7.72x"));
}

TEST(PageFrame, FillsOnceAndRefusesWhatNobodyGives) {
  EXPECT_EQ(filled("a {{x}} c {{x}}", {{"x", "{{y}}"}}), "a {{y}} c {{y}}");
  EXPECT_THROW(filled("{{x}}", {}), std::logic_error);
  EXPECT_THROW(filled("{{x", {{"x", ""}}), std::logic_error);
}

TEST(BarPicture, DrawsWhatItIsGivenAndNothingThatIsNoNumber) {
  const BarChart chart{.title = "t",
                       .logarithmic = true,
                       .reference = 1,
                       .groups = {{"g",
                                   {{.name = "fast", .value = 100, .text = "100x"},
                                    {.name = "slow", .value = 0.5, .text = "0.5x"},
                                    {.name = "<odd>", .value = NAN, .text = "none"}}}}};
  for (const double width : {svg::wide_px, svg::narrow_px}) {
    const std::string drawn = svg::alone(bar_picture(chart, width));
    EXPECT_THAT(drawn, HasSubstr(">100x<"));
    EXPECT_THAT(drawn, HasSubstr("&lt;odd&gt;"));
    EXPECT_THAT(drawn, Not(HasSubstr("=\"nan")));
  }
}

TEST(Machines, SpeedAndWhatIsLeftOfItWithoutTheMachine) {
  evidence::RunRecord here{.manifest = sample::manifest(), .pairs = {sample::passed_pair()}}, there = here;
  for (evidence::VariantResult& variant : there.pairs[0].variants) {
    variant.timing->summary.median *= 2;
    variant.floor = evidence::Floor{.percent = 40};
  }
  for (evidence::VariantResult& variant : here.pairs[0].variants) variant.floor = evidence::Floor{.percent = 80};
  const Machines machines = compare_machines(here, there);
  ASSERT_EQ(machines.speed.groups[0].bars.size(), 1u);
  EXPECT_DOUBLE_EQ(machines.speed.groups[0].bars[0].value, 2);
  EXPECT_DOUBLE_EQ(machines.normalised.groups[0].bars[0].value, 2);
  there.pairs[0].sizes["m"] = 7;
  EXPECT_THAT(compare_machines(here, there).summary, HasSubstr("No pair passed in both"));
}

TEST(Html, LoadsNothingAndAllowsNothing) {
  const std::string page = shown(sample_report());
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
  EXPECT_THAT(shown(report), HasSubstr("interval 6.00 ms to 15.0 ms"));  // ranks 6 and 15 cover 95.9 %
  timing.raw_times_ms.resize(5);
  EXPECT_THAT(shown(report), Not(HasSubstr("interval 1 ms to 5 ms")));
}

}  // namespace
}  // namespace aisp::report
