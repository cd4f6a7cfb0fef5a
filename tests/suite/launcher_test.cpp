// SPDX-License-Identifier: Apache-2.0
#include "suite/settings/configuration.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.hpp"

namespace aisp::suite {
namespace {

using testing::HasSubstr;

using VariableMap = std::map<std::string, std::string>;

std::optional<Launched> launched_with(const VariableMap& variables, const std::string& rendezvous = {}) {
  return find_launcher(rendezvous, [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string launcher_trouble(const VariableMap& variables, const std::string& rendezvous = {}) try {
  launched_with(variables, rendezvous);
  return {};
} catch (const base::Error& error) {
  return error.what();
}

VariableMap slurm_step(const std::string& task, const std::string& tasks) {
  return {{"SLURM_JOB_ID", "77"},  {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", task},  {"SLURM_STEP_NUM_TASKS", tasks},
          {"SLURM_LOCALID", "1"},  {"SLURM_STEP_NODELIST", "gpu[007-008]"},
          {"SLURM_NTASKS", tasks}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}};
}

TEST(Launcher, IsNoneInAProcessByItself) {
  EXPECT_FALSE(launched_with({}));
  EXPECT_FALSE(launched_with({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}})) << "a batch script, not a step";
  EXPECT_FALSE(launched_with(slurm_step("0", "1"))) << "a task of an array is a shard";
  EXPECT_FALSE(launched_with({{"JOB_COMPLETION_INDEX", "2"}, {"JOB_COMPLETIONS", "4"}})) << "a shard";
  EXPECT_FALSE(launched_with({{"WORLD_SIZE", "8"}, {"MASTER_ADDR", "a"}}));
  EXPECT_FALSE(launched_with(slurm_step("3", "8"), "none"));
}

TEST(Launcher, IsAStepOfSlurm) {
  const auto launched = launched_with(slurm_step("3", "8"));
  ASSERT_TRUE(launched);
  EXPECT_EQ(launched->launcher, "Slurm");
  EXPECT_EQ(launched->index, 3);
  EXPECT_EQ(launched->count, 8);
  EXPECT_EQ(launched->local_index, 1);
  EXPECT_THAT(launched->address, testing::MatchesRegex("tcp:gpu007:2[0-9][0-9][0-9][0-9]"));
  EXPECT_EQ(launched->address, launched_with(slurm_step("0", "8"))->address);
  VariableMap other_step = slurm_step("3", "8");
  other_step["SLURM_STEP_ID"] = "1";
  EXPECT_NE(launched->secret, launched_with(other_step)->secret);
  other_step["SLURM_STEP_TASKS_PER_NODE"] = "8";
  EXPECT_THAT(launched_with(other_step)->address, HasSubstr("tcp:127.0.0.1:"));
  EXPECT_EQ(launched_with(other_step, "[fd00::1]:99")->address, "tcp:[fd00::1]:99");
}

TEST(Launcher, IsTheInnermost) {
  VariableMap variables = slurm_step("1", "2");
  variables.insert({{"OMPI_COMM_WORLD_RANK", "5"},
                    {"OMPI_COMM_WORLD_SIZE", "8"},
                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_THAT(launcher_trouble(variables), HasSubstr("Open MPI started 8 processes and does not say where the first one is"));
  variables["SLURM_JOB_NODELIST"] = "gpu[7,9]";
  EXPECT_THAT(launched_with(variables)->address, HasSubstr("tcp:gpu7:"));
  variables.insert({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}});
  EXPECT_FALSE(launched_with(variables)) << "each task starts a torchrun of its own";
  variables["WORLD_SIZE"] = "2";
  EXPECT_EQ(launched_with(variables)->launcher, "torchrun");
  EXPECT_EQ(launched_with(variables)->address, "tcp:localhost:29500");
  variables["TORCHELASTIC_RUN_ID"] = "none";
  EXPECT_NE(launched_with(variables)->address, "tcp:localhost:29500") << "torchrun's own store is there";
}

TEST(Launcher, IsAnIndexedJobThatSaysHowManyAndWhere) {
  VariableMap job{{"JOB_COMPLETION_INDEX", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "aisp-0.aisp"}, {"MASTER_PORT", "29600"}};
  EXPECT_EQ(launched_with(job)->launcher, "Kubernetes");
  EXPECT_EQ(launched_with(job)->address, "tcp:aisp-0.aisp:29600");
  job.erase("MASTER_ADDR");
  EXPECT_THAT(launcher_trouble(job), HasSubstr("MASTER_ADDR"));
}

TEST(Launcher, IsMpichOnlyWithItsOwnVariables) {
  VariableMap variables{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}};
  EXPECT_FALSE(launched_with(variables)) << "Slurm's plugin sets them too";
  variables["MPI_LOCALRANKID"] = "1";
  EXPECT_THAT(launched_with(variables)->address, HasSubstr("tcp:127.0.0.1:"));
}

TEST(Launcher, SaysWhatIsWrong) {
  EXPECT_THAT(launcher_trouble(slurm_step("8", "8")), HasSubstr("SLURM_PROCID is 8 and SLURM_STEP_NUM_TASKS is 8"));
  EXPECT_THAT(launcher_trouble(slurm_step("-1", "8")), HasSubstr("SLURM_PROCID '-1' must be a whole number"));
  for (const char* place : {"host", ":99", "host:", "host:0", "host:65536", "host:http"})
    EXPECT_THAT(launcher_trouble({}, place), HasSubstr("must be HOST:PORT or none")) << place;
}

TEST(FirstHost, OfAList) {
  for (const auto& [list, host] : std::map<std::string, std::string>{{"node7", "node7"},
                                                                     {"node7,node9", "node7"},
                                                                     {"node[007-010,12]", "node007"},
                                                                     {"node[3],x", "node3"},
                                                                     {"r[1-2]n[04,07].lab", "r1n04.lab"},
                                                                     {"node[", "node"},
                                                                     {"", ""}})
    EXPECT_EQ(first_host(list), host);
}

}  // namespace
}  // namespace aisp::suite
