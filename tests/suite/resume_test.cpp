// SPDX-License-Identifier: Apache-2.0
#include "suite/resume.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "suite/records.hpp"

namespace aisp::suite {
namespace {

TEST(Resume, TakesOverWhatWasSetAndNothingElse) {
  const base::ScratchDirectory scratch{"aisp-test-"};
  Configuration before;
  apply(before, "iterations", {"7"}, "flag");
  apply(before, "percentiles", {"99.9,10"}, "aisp.toml");
  apply(before, "no-alternate", {}, "flag");
  apply(before, "mode", {"timer"}, "flag");
  apply(before, "run-id", {"nightly"}, "flag");
  nlohmann::json json = effective(before, {});
  json["targets"] = {"ch07:transpose"};
  base::write_atomically(scratch.path() / configuration_file, json.dump());

  const Resumed resumed = read_resumed(scratch.path());
  EXPECT_EQ(resumed.targets, std::vector<std::string>{"ch07:transpose"});
  EXPECT_EQ(resumed.configuration.iterations, 7);
  EXPECT_EQ(resumed.configuration.percentiles, (std::vector<double>{99.9, 10}));
  EXPECT_FALSE(resumed.configuration.alternate);
  EXPECT_EQ(resumed.configuration.mode, run::TimingMode::timer);
  EXPECT_EQ(resumed.configuration.run_id, "");
  EXPECT_EQ(resumed.configuration.origins.count("warmup"), 0u) << "a default must stay open for the pair's own value";
}

TEST(Resume, DamageIsAnErrorAndAbsenceIsNot) {
  const base::ScratchDirectory scratch{"aisp-test-"};
  EXPECT_TRUE(read_resumed(scratch.path()).targets.empty());
  base::write_atomically(scratch.path() / configuration_file, "{ \"iterations\": ");
  EXPECT_THROW(read_resumed(scratch.path()), base::Error);
}

}  // namespace
}  // namespace aisp::suite
