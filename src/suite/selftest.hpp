// SPDX-License-Identifier: Apache-2.0
// Runs the cheats that come with aisp and verifies that each is detected by the check that is meant for it.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/words.hpp"
#include "evidence/result.hpp"
#include "machine/machine.hpp"
#include "pair/registry.hpp"

namespace aisp::suite {

enum class SelftestVerdict {
  caught,       // a cheat, ended as expected and by the check that is meant for it
  slipped,      // a cheat that was not caught, or by other checks only
  passed,       // a correct pair without complaints
  false_alarm,  // a correct pair with a complaint
  skipped,      // cannot run here
};
constexpr base::Words<5> words_of(SelftestVerdict /*any*/) { return {{"caught", "slipped", "passed", "false_alarm", "skipped"}}; }
constexpr std::string_view to_string(SelftestVerdict verdict) { return base::word_for(verdict); }

struct SelftestLine {
  std::string family;  // the file that it is in
  std::string about;   // what the pairs of its family do
  std::string name;
  evidence::Device device = evidence::Device::gpu;
  std::string does;
  bool honest = false;
  std::string expected;  // "failed: measurement/timed_samples or warmup/timed_samples"
  std::string happened;  // the same for the actual result, with all checks that complained
  SelftestVerdict verdict = SelftestVerdict::skipped;
  std::string reason;  // reason of a skip, a slip or a false alarm
  double wall_s = 0;
};

struct SelftestReport {
  std::vector<SelftestLine> lines;
  bool interrupted = false;
  double wall_s = 0;
  std::size_t count(SelftestVerdict verdict) const;
  bool good() const;  // nothing slipped, no false alarm
};

// The lines of one family, in the order of the report.
struct SelftestFamily {
  std::string name;
  std::string about;
  std::vector<const SelftestLine*> lines;
  std::size_t count(SelftestVerdict verdict) const;
  double wall_s() const;
};
std::vector<SelftestFamily> families_of(const SelftestReport& report);

struct SelftestTask {
  std::vector<const pair::SelftestEntry*> selected;
  machine::Machine machine;
  std::function<void(const SelftestLine&)> on_line = [](const SelftestLine&) {};
};

// Selects this executable's self-test pairs on the devices asked for; with `names`, only those, by name or family. Throws
// base::Error for a name that nothing has.
std::vector<const pair::SelftestEntry*> select_selftest(bool host, bool gpu, const std::vector<std::string>& names = {});

// Judges by a pair's result whether the harness works.
SelftestLine judge_selftest(const pair::SelftestEntry& entry, const evidence::PairResult& result);

// Runs each pair in a child process of its own, with short deadlines. Throws base::Error if the GPU is taken.
SelftestReport run_selftest(const SelftestTask& task);

}  // namespace aisp::suite
