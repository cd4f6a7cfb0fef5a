// SPDX-License-Identifier: Apache-2.0
// The page of a whole run: every pair's code, several variants, hundreds of samples each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <regex>
#include <utility>
#include <vector>

#include "base/deflate.hpp"
#include "base64.hpp"
#include "places.hpp"
#include "report/html/html.hpp"
#include "sample_suite.hpp"

namespace aisp::report {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t pairs_of_a_run = 264, rounds = 300;

std::string text_of(const fs::path& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

// The folder in which the build describes the pairs' code (cmake/code/digest.py).
fs::path described_code() { return fs::path{aisp_path()}.parent_path() / "generated/code/chapters"; }

// Returns the targets of the pairs that were built, and their code.
std::vector<std::pair<std::string, PairSource>> shipped_code() {
  std::vector<std::pair<std::string, PairSource>> sources;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator{described_code()}) {
    if (entry.path().extension() != ".txt") continue;
    PairSource source;
    const std::string text = text_of(entry.path());
    for (std::size_t at = text.find("\nfile "), end; at != std::string::npos; at = end) {
      end = text.find("\nfile ", at + 1);
      const std::string lines = text.substr(at + 6, end - at - 6), path = lines.substr(0, lines.find('\n'));
      source.add({path, text_of(source_folder() / path)}, lines.substr(path.size()));
    }
    const std::string chapter = entry.path().parent_path().filename(), name = entry.path().stem().stem();
    sources.emplace_back(chapter + ':' + name, std::move(source));
  }
  std::ranges::sort(sources, {}, [](const auto& pair) { return pair.first; });
  return sources;
}

void fill_samples(evidence::VariantResult& variant, std::mt19937& random) {
  evidence::Timing& timing = *variant.timing;
  std::normal_distribution<double> noise{1, 0.004};
  timing.raw_times_ms.clear();
  timing.rounds.clear();
  for (std::size_t i = 0; i < rounds; ++i) {
    timing.raw_times_ms.push_back(timing.summary.median * noise(random) + timing.offset_ms);
    timing.rounds.push_back(static_cast<int>(i));
  }
}

evidence::PairResult pair_of(const std::string& target, const std::string& code, std::mt19937& random) {
  evidence::PairResult pair = sample::passed_pair();
  pair.target = target;
  pair.chapter = target.substr(0, 4);
  pair.name = target.substr(5);
  static const std::regex name{"\\.name = \"(\\w+)\",\\s*\\.run"};
  pair.variants.resize(1);
  const evidence::VariantResult plain = pair.variants.front();
  pair.variants.clear();
  for (std::sregex_iterator found{code.begin(), code.end(), name}, end; found != end && pair.variants.size() < 8; ++found) {
    evidence::VariantResult& variant = pair.variants.emplace_back(plain);
    variant.name = (*found)[1];
    variant.role = pair.variants.size() == 1 ? evidence::VariantRole::baseline : evidence::VariantRole::optimized;
    if (pair.variants.size() > 1) variant.speedup = evidence::Speedup{1.5, 1.49, 1.51, evidence::Verdict::faster};
    fill_samples(variant, random);
    pair.lesson = pair.best = variant.name;
  }
  pair.gpu_states.clear();
  for (std::size_t i = 0; i < rounds; ++i)
    pair.gpu_states.push_back(
        {1980 - 15 * static_cast<int>(random() % 3), 2619, 400.0 + static_cast<double>(random() % 90), 45, 4});
  return pair;
}

// Pairs that were not built have the code of others, under other names.
HtmlReport whole_run() {
  std::mt19937 random{1};
  HtmlReport report;
  report.run.manifest = sample::manifest();
  const std::vector<std::pair<std::string, PairSource>> shipped = shipped_code();
  for (std::size_t i = 0; i < pairs_of_a_run; ++i) {
    auto [target, source] = shipped[i % shipped.size()];
    if (i >= shipped.size()) {
      target += "_" + std::to_string(i);
      source.files.front().path += "_" + std::to_string(i);
    }
    report.run.pairs.push_back(pair_of(target, source.files.front().text, random));
    report.sources[target] = std::move(source);
  }
  return report;
}

TEST(LargePage, OfAllPairsIsSmallAndHasEverySample) {
  if (!fs::exists(described_code())) GTEST_SKIP() << "built elsewhere";
  const HtmlReport report = whole_run();
  const std::string page = html_report(report);
  if (const char* file = std::getenv("AISP_TEST_PAGE")) std::ofstream{file} << page;
  EXPECT_LT(page.size(), 5'000'000u);
  const std::string packed = "<div class=\"packed\" data-deflated=\"";
  std::size_t pairs = 0;
  for (std::size_t at = 0; (at = page.find(packed, at)) != std::string::npos; at += packed.size()) ++pairs;
  EXPECT_EQ(pairs, pairs_of_a_run);
  const std::size_t begin = page.find(packed) + packed.size();
  const std::string first = base::inflated(tests::from_base64(page.substr(begin, page.find('"', begin) - begin)));
  static const std::regex places{"data-x=\"([0-9a-z]*)\""};
  std::size_t strips = 0;
  for (std::sregex_iterator strip{first.begin(), first.end(), places}, end; strip != end; ++strip, ++strips)
    EXPECT_EQ((*strip)[1].length(), 2 * static_cast<std::ptrdiff_t>(rounds));
  EXPECT_EQ(strips, report.run.pairs.front().variants.size());
}

}  // namespace
}  // namespace aisp::report
