// SPDX-License-Identifier: Apache-2.0
// The child is a shell script here, so that every way to die can be had in a line.
#include "run/parent/supervisor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/system/files.hpp"
#include "evidence/json.hpp"

namespace aisp::run {
namespace {

using evidence::Status;
using testing::Contains;
using testing::Field;
using testing::HasSubstr;
using testing::Not;

constexpr Pair fixture{.teaches = "something",
                       .make = nullptr,
                       .baseline = {"slow"},
                       .optimized = variants({{"fast"}}),
                       .device = Device::host,
                       .bound = Bound::host};
constexpr pair::Entry entry{"ch90", "scripted", "tests/pairs/ch90/scripted.cpp", &fixture};

class SupervisorTest : public testing::Test {
 protected:
  SupervisedRun run(const std::string& script) {
    const std::filesystem::path program = folder_.path() / "child.sh";
    std::ofstream{program} << "#!/bin/bash\n" << script << '\n';
    ::chmod(program.c_str(), 0755);
    supervision_.executable = program.string();
    supervision_.log = folder_.path() / "log.txt";
    supervision_.log_name = "log.txt";
    Request request;
    request.target = "ch90:scripted";
    return supervise(entry, request, supervision_);
  }
  std::string log() const { return base::read_file(folder_.path() / "log.txt"); }

  static std::string result_line(const char* kind = "result") {
    evidence::PairResult result;
    result.target = "ch01:impostor";
    result.stopped_because = evidence::StopReason::fixed_iterations;
    return "echo '" + nlohmann::json{{kind, result}}.dump() + "' >&3";
  }

  static Supervision quick() {
    Supervision supervision;
    supervision.grace_s = 0.1;
    supervision.startup_limit_s = 2;
    supervision.exit_limit_s = 0.3;
    return supervision;
  }

  base::ScratchDirectory folder_{"aisp-test-"};
  Supervision supervision_ = quick();
};

auto problem(const char* check) { return Contains(Field("check", &evidence::Problem::check, std::string{check})); }

TEST_F(SupervisorTest, TakesTheResultAndKeepsThePairsIdentity) {
  const SupervisedRun outcome =
      run("read request; echo hello; echo '{\"stage\":\"setup\",\"limit_s\":5}' >&3;"
          "sleep 0.02; echo '{\"stage_done\":\"setup\",\"elapsed_s\":0.0125}' >&3;"
          "echo '{\"stage\":\"verify\",\"limit_s\":5}' >&3; echo '{\"stage_done\":\"verify\",\"elapsed_s\":30}' >&3\n" +
          result_line());
  EXPECT_EQ(outcome.result.status, Status::passed);
  EXPECT_TRUE(outcome.result.complete);
  EXPECT_EQ(outcome.result.target, "ch90:scripted");
  EXPECT_EQ(outcome.result.stopped_because, evidence::StopReason::fixed_iterations);
  ASSERT_EQ(outcome.result.watchdog.size(), 2u);
  EXPECT_EQ(outcome.result.watchdog[0].stage, evidence::Stage::setup);
  EXPECT_TRUE(outcome.result.watchdog[0].finished);
  EXPECT_DOUBLE_EQ(outcome.result.watchdog[0].elapsed_s, 0.0125);
  EXPECT_LT(outcome.result.watchdog[1].elapsed_s, 10) << "longer than the supervisor has known of it";
  EXPECT_EQ(log(), "hello\n");
  EXPECT_TRUE(outcome.result.problems.empty());
}

TEST_F(SupervisorTest, HandsTheRequestOverOnStdin) {
  run("cat; " + result_line());
  EXPECT_EQ(nlohmann::json::parse(log()).at("target"), "ch90:scripted");
}

TEST_F(SupervisorTest, GivesAHostPairAFolderOfItsOwnAndRemovesItAfterACrash) {
  run(R"sh(own=$(sed 's/.*"own_folder":"\([^"]*\)".*/\1/'); ls -A "$own" | wc -l; echo left > "$own/left"; echo "$own"; kill -SEGV $$)sh");
  ASSERT_THAT(log(), testing::StartsWith("0\n/"));
  const std::string own = log().substr(2, log().size() - 3);
  EXPECT_FALSE(std::filesystem::exists(own)) << own;
}

TEST_F(SupervisorTest, AnswersWithTimesOfAnotherProcess) {
  const std::string wanted = R"(echo '{"baseline_wanted":{"runs":4,"limit_s":5,"seed":7}}' >&3;)";
  const std::string waits = R"sh(own=$(echo "$request" | sed 's/.*"own_folder":"\([^"]*\)".*/\1/')
while [ ! -e "$own/baseline_ms.json" ]; do sleep 0.01; done; cat "$own/baseline_ms.json"
)sh";
  const auto answer = [&](const std::string& other) {
    run(R"sh(request=$(cat); case "$request" in *'"baseline_runs":4'*) )sh" + other + " exit;; esac;" + wanted + waits +
        result_line());
    return log();
  };
  EXPECT_EQ(answer(R"(echo '{"baseline_ms":[1.5,2]}' >&3;)"), "[1.5,2.0]");
  EXPECT_EQ(answer("kill -SEGV $$;"), "[]");
}

// Verifies, waits for its turn, and tells in its log that this has come.
constexpr const char* asks_for_quiet =
    R"sh(echo '{"stage":"verify","limit_s":5}' >&3; echo '{"stage_done":"verify","elapsed_s":0.01}' >&3
echo '{"turn_wanted":"quiet"}' >&3; read -u 3 answer; echo came; echo '{"stage":"warmup","limit_s":0.2}' >&3
)sh";

TEST_F(SupervisorTest, AChildWaitsForItsTurnWithoutALimit) {
  int asked = 0;
  supervision_.startup_limit_s = 0.1;
  supervision_.turn = [&](Turn turn, double patience_s) {
    EXPECT_EQ(turn, Turn::quiet);
    std::this_thread::sleep_for(std::chrono::duration<double>{patience_s});
    return ++asked == 20;
  };
  const SupervisedRun outcome = run(asks_for_quiet + result_line());
  EXPECT_EQ(outcome.result.status, Status::passed) << outcome.result.reason;
  EXPECT_EQ(asked, 20);
  EXPECT_EQ(log(), "came\n");
  EXPECT_LT(outcome.result.wall_s, 0.9) << "the wait of a second is no part of it";
}

TEST_F(SupervisorTest, ATurnComesAtOnceWhereNothingElseRuns) {
  EXPECT_EQ(run(asks_for_quiet + result_line()).result.status, Status::passed);
  EXPECT_EQ(log(), "came\n");
}

TEST_F(SupervisorTest, LimitsHoldAgainAfterATurnHasCome) {
  supervision_.turn = [](Turn, double) { return true; };
  const SupervisedRun outcome = run(std::string{asks_for_quiet} + "sleep 60");
  EXPECT_EQ(outcome.result.timeout_stage, evidence::Stage::warmup);
  EXPECT_LT(outcome.result.wall_s, 5);
}

TEST_F(SupervisorTest, AChildThatDiesOrIsInterruptedWhileItWaitsEnds) {
  supervision_.turn = [](Turn, double) { return false; };
  const std::string wanted = R"(echo '{"stage":"verify","limit_s":5}' >&3; echo '{"stage_done":"verify","elapsed_s":1}' >&3;
echo '{"turn_wanted":"quiet"}' >&3; )";
  EXPECT_EQ(run(wanted + "sleep 0.2; kill -SEGV $$").result.status, Status::crashed);
  EXPECT_EQ(run(wanted + "exec 3>&-; sleep 60").result.status, Status::crashed) << "nothing can wait that cannot be answered";
  const auto since = std::chrono::steady_clock::now();
  supervision_.interrupted = [&] { return std::chrono::steady_clock::now() - since > std::chrono::milliseconds{300}; };
  const SupervisedRun outcome = run(wanted + "sleep 60");
  EXPECT_TRUE(outcome.interrupted);
  EXPECT_LT(outcome.result.wall_s, 5);
}

TEST_F(SupervisorTest, NoTurnIsAskedForDuringAStage) {
  supervision_.turn = [](Turn, double) { return ADD_FAILURE() << "asked", true; };
  EXPECT_EQ(
      run(R"(echo '{"stage":"verify","limit_s":0.2}' >&3; echo '{"turn_wanted":"quiet"}' >&3; sleep 60)").result.timeout_stage,
      evidence::Stage::verify);
}

TEST_F(SupervisorTest, StopsAStageAtItsLimitAndSaysSo) {
  const SupervisedRun outcome = run("echo '{\"stage\":\"verify\",\"limit_s\":0.2}' >&3; sleep 60");
  EXPECT_EQ(outcome.result.status, Status::timeout);
  EXPECT_EQ(outcome.result.timeout_stage, evidence::Stage::verify);
  EXPECT_DOUBLE_EQ(outcome.result.timeout_limit_seconds, 0.2);
  EXPECT_GT(outcome.result.timeout_duration_seconds, 0.2);
  EXPECT_LT(outcome.result.wall_s, 5);
  EXPECT_FALSE(outcome.result.complete);
  EXPECT_THAT(outcome.result.reason,
              testing::MatchesRegex("verify took longer than its limit of 0.2 s and was killed after [0-9.]+ s"));
  ASSERT_THAT(outcome.result.problems, problem("stage_limit"));
  EXPECT_THAT(outcome.result.problems[0].message, HasSubstr("(0.1 s of grace beyond the limit)"));
  EXPECT_THAT(outcome.result.problems[0].advice, HasSubstr("--timeout-multiplier"));
  ASSERT_EQ(outcome.result.watchdog.size(), 1u);
  EXPECT_FALSE(outcome.result.watchdog[0].finished);
}

TEST_F(SupervisorTest, NamesTheMultiplierThatWouldHaveBeenEnough) {
  const auto advice = [&](const std::string& script) { return run(script + "sleep 60").result.problems.at(0).advice; };
  const std::string begin = R"(echo '{"stage":"measurement","limit_s":0.4}' >&3; )";
  const auto round = [](int number) {
    return R"(sleep 0.2; echo '{"progress":{"round":)" + std::to_string(number) + R"(,"of":20}}' >&3; )";
  };
  EXPECT_THAT(advice(begin + round(1) + round(2)),
              testing::MatchesRegex(".*a round takes 0.2 s, and 5 are the least, so --timeout-multiplier [34] would do;.*"));
  EXPECT_THAT(advice(begin), testing::MatchesRegex(".*a round takes more than 0.[5-9] s, and 5 are the least, so "
                                                   "--timeout-multiplier [0-9]+ is the least that may do;.*"));
  EXPECT_THAT(advice(begin + R"(echo '{"progress":{"round":1,"of":20}}' >&3; )"), HasSubstr("--timeout-multiplier 2 doubles"))
      << "rounds were quick until one hung";
  EXPECT_THAT(advice(R"(echo '{"stage":"verify","limit_s":0.2}' >&3; )"), HasSubstr("--timeout-multiplier 2 doubles"));
}

TEST_F(SupervisorTest, NamesTheVariantThatWasAtWork) {
  // As the child does: the page is in the request, and the name in its first bytes.
  const std::string note = R"sh(page=$(sed 's/.*"running_variant_page":"\([^"]*\)".*/\1/')
note() { printf '%s\0' "$1" 1<>"$page"; }
echo '{"stage":"verify","limit_s":0.3}' >&3
note )sh";
  const SupervisedRun crashed = run(note + "fast; kill -SEGV $$");
  EXPECT_THAT(crashed.result.reason, HasSubstr("crashed in verify, in 'fast' (SIGSEGV"));
  EXPECT_EQ(crashed.result.problems.at(0).variant, "fast");
  const SupervisedRun late = run(note + "slow; sleep 60");
  EXPECT_THAT(late.result.reason, HasSubstr(", in 'slow'"));
  EXPECT_EQ(late.result.problems.at(0).variant, "slow");
  EXPECT_EQ(run(note + "impostor; kill -SEGV $$").result.problems.at(0).variant, "") << "no variant of this pair";
}

TEST_F(SupervisorTest, TellsWhereItCrashed) {
  const std::string begin = R"(echo '{"stage":"verify","limit_s":5}' >&3
echo '{"crash":["/no/such/file+0x1c","/also\u001bnot+0x2"]}' >&3
)";
  const auto& problems = run(begin + "kill -SEGV $$").result.problems;
  const auto stack = std::ranges::find(problems, "stack", &evidence::Problem::check);
  ASSERT_NE(stack, problems.end());
  EXPECT_EQ(stack->message, "it crashed in\n#0 /no/such/file+0x1c\n#1 /also?not+0x2");
  for (const evidence::Problem& problem : run(begin + "exit 3").result.problems) EXPECT_NE(problem.check, "stack");
}

TEST_F(SupervisorTest, AProfileThatHangsOrCrashesCostsNoResult) {
  const std::string measured = result_line("partial") + "\necho '{\"stage\":\"profiling\",\"limit_s\":0.2}' >&3\n";
  for (const auto& [death, words] : {std::pair{"sleep 60", "profiling took longer than its limit of 0.2 s"},
                                     std::pair{"kill -SEGV $$", "crashed in profiling (SIGSEGV"},
                                     std::pair{"exit 3", "ended in profiling with exit status 3"}}) {
    const SupervisedRun outcome = run(measured + death);
    EXPECT_EQ(outcome.result.status, Status::passed) << death;
    EXPECT_TRUE(outcome.result.complete) << death;
    EXPECT_EQ(outcome.result.stopped_because, evidence::StopReason::fixed_iterations) << death;
    EXPECT_EQ(outcome.result.timeout_stage, evidence::Stage::none) << death;
    EXPECT_THAT(outcome.result.problems, testing::IsEmpty()) << death;
    ASSERT_EQ(outcome.result.lost.size(), 1u) << death;
    EXPECT_EQ(outcome.result.lost[0].kind, evidence::LostKind::profile);
    EXPECT_THAT(outcome.result.lost[0].text, testing::StartsWith(std::string{"no profile of every variant: "} + words));
  }
}

TEST_F(SupervisorTest, CountersThatHangCostNoResult) {
  const SupervisedRun outcome = run(result_line("partial") + "\necho '{\"stage\":\"counters\",\"limit_s\":0.2}' >&3\nsleep 60");
  EXPECT_EQ(outcome.result.status, Status::passed);
  ASSERT_EQ(outcome.result.lost.size(), 1u);
  EXPECT_EQ(outcome.result.lost[0].kind, evidence::LostKind::counters);
  EXPECT_THAT(outcome.result.lost[0].text,
              testing::StartsWith("no counters of every variant: counters took longer than its limit"));
}

TEST_F(SupervisorTest, ADeathBeforeProfilingStillCountsAsOne) {
  const SupervisedRun outcome = run(result_line("partial") + "\necho '{\"stage\":\"reverify\",\"limit_s\":5}' >&3; exit 3");
  EXPECT_EQ(outcome.result.status, Status::crashed);
}

TEST_F(SupervisorTest, ChildThatNeverSaysAnythingIsLateAtStart) {
  supervision_.startup_limit_s = 0.2;
  EXPECT_EQ(run("sleep 60").result.timeout_stage, evidence::Stage::start);
}

TEST_F(SupervisorTest, KeepsWhatWasMeasuredBeforeADeath) {
  const SupervisedRun outcome = run(result_line("partial") + "; kill -SEGV $$");
  EXPECT_EQ(outcome.result.status, Status::crashed);
  EXPECT_EQ(outcome.result.stopped_because, evidence::StopReason::fixed_iterations);
  EXPECT_FALSE(outcome.result.complete);
}

TEST_F(SupervisorTest, NamesTheSignalAndTheStageAndTheLastWords) {
  const SupervisedRun outcome = run("echo '{\"stage\":\"measurement\",\"limit_s\":9}' >&3; echo alas; kill -SEGV $$");
  EXPECT_EQ(outcome.result.status, Status::crashed);
  EXPECT_THAT(outcome.result.reason, testing::AllOf(HasSubstr("SIGSEGV"), HasSubstr("measurement")));
  ASSERT_THAT(outcome.result.problems, problem("output"));
  EXPECT_THAT(outcome.result.problems.back().message, HasSubstr("alas"));
}

TEST_F(SupervisorTest, ForeignSigkillComesFromOutside) {
  EXPECT_THAT(run("kill -KILL $$").result.reason, testing::StartsWith("killed from outside in start (it held up to "));
}

TEST_F(SupervisorTest, ExitWithoutResultIsACrashWithItsStatus) {
  EXPECT_THAT(run("exit 3").result.reason, HasSubstr("exit status 3"));
  EXPECT_EQ(run("exit 0").result.status, Status::crashed);
}

TEST_F(SupervisorTest, ResultStandsWhenTheProcessHangsAtItsEnd) {
  const SupervisedRun outcome = run(result_line() + "; sleep 60");
  EXPECT_EQ(outcome.result.status, Status::passed);
  EXPECT_THAT(outcome.result.problems, problem("exit_limit"));
  EXPECT_LT(outcome.result.wall_s, 5);
}

TEST_F(SupervisorTest, ClosedPipeWithoutResultIsACrash) {
  const SupervisedRun outcome = run("exec 3>&-; sleep 60");
  EXPECT_EQ(outcome.result.status, Status::crashed);
  EXPECT_THAT(outcome.result.reason, HasSubstr("closed its result pipe"));
  EXPECT_LT(outcome.result.wall_s, 5);
}

TEST_F(SupervisorTest, KillsWhatTheChildLeftBehindEvenInAnotherSession) {
  const std::string pids = (folder_.path() / "pids").string();
  const SupervisedRun outcome =
      run("sleep 61 & echo $! > " + pids + "; setsid sleep 62 & sleep 0.2; echo $! >> " + pids + "\n" + result_line());
  EXPECT_EQ(outcome.result.status, Status::passed);
  ASSERT_THAT(outcome.result.problems, problem("processes_left"));
  std::ifstream stream{pids};
  int seen = 0;
  for (pid_t pid = 0; stream >> pid; ++seen) {
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    const auto stat = base::try_read_file("/proc/" + std::to_string(pid) + "/stat");
    EXPECT_TRUE(!stat || stat->find(") Z ") != std::string::npos) << *stat;
  }
  EXPECT_EQ(seen, 2);
}

TEST_F(SupervisorTest, GarbageOnThePipeIsAWarning) {
  const SupervisedRun outcome = run("echo 'not json' >&3; echo '[1]' >&3; echo '{\"stage\":7}' >&3\n" + result_line());
  EXPECT_EQ(outcome.result.status, Status::passed);
  ASSERT_EQ(outcome.result.warnings.size(), 1u);
  EXPECT_THAT(outcome.result.warnings[0], testing::AllOf(HasSubstr("3 unreadable lines"), HasSubstr("not json")));
}

TEST_F(SupervisorTest, RunawayOutputIsCutInTheMiddle) {
  supervision_.log_limit_bytes = 64 * 1024;
  const SupervisedRun outcome = run("echo first words; yes | head -c 4000000; echo last words\n" + result_line());
  EXPECT_EQ(outcome.result.status, Status::passed);
  const std::string text = log();
  EXPECT_LT(text.size(), 70u * 1024);
  EXPECT_THAT(text, testing::StartsWith("first words\n"));
  EXPECT_THAT(text, testing::EndsWith("last words\n"));
  EXPECT_THAT(text, HasSubstr("bytes dropped here"));
  EXPECT_THAT(outcome.result.warnings, Contains(HasSubstr("too long")));
}

TEST_F(SupervisorTest, InterruptKillsAndReturnsWhatThereIs) {
  std::atomic<bool> interrupt{false};
  supervision_.interrupted = [&] { return interrupt.load(); };
  supervision_.on_progress = [&](const Progress& progress) { interrupt = progress.stage == evidence::Stage::verify; };
  const SupervisedRun outcome = run(result_line("partial") + "; echo '{\"stage\":\"verify\",\"limit_s\":60}' >&3; sleep 60");
  EXPECT_TRUE(outcome.interrupted);
  EXPECT_FALSE(outcome.result.complete);
  EXPECT_EQ(outcome.result.status, Status::skipped);
  EXPECT_THAT(outcome.result.reason, HasSubstr("interrupted in verify"));
  EXPECT_EQ(outcome.result.stopped_because, evidence::StopReason::fixed_iterations);
}

TEST_F(SupervisorTest, SuiteDeadlineIsATimeout) {
  supervision_.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds{200};
  const SupervisedRun outcome = run("echo '{\"stage\":\"verify\",\"limit_s\":60}' >&3; sleep 60");
  EXPECT_EQ(outcome.result.status, Status::timeout);
  EXPECT_EQ(outcome.result.timeout_stage, evidence::Stage::suite);
}

TEST_F(SupervisorTest, ReportsProgress) {
  std::vector<Progress> seen;
  supervision_.on_progress = [&](const Progress& progress) { seen.push_back(progress); };
  run("echo '{\"stage\":\"measurement\",\"limit_s\":9}' >&3; echo '{\"progress\":{\"round\":3,\"of\":20}}' >&3\n" +
      result_line());
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[1].stage, evidence::Stage::measurement);
  EXPECT_EQ(seen[1].rounds.round, 3);
  EXPECT_EQ(seen[1].rounds.of, 20);
}

TEST_F(SupervisorTest, MissingProgramIsACrashOfThePairNotOfTheSuite) {
  supervision_.executable = "/nonexistent/aisp";
  Request request;
  const SupervisedRun outcome = supervise(entry, request, supervision_);
  EXPECT_EQ(outcome.result.status, Status::crashed);
  EXPECT_THAT(outcome.result.reason, HasSubstr("could not be started"));
  EXPECT_FALSE(outcome.result.complete) << "what never started would never be tried again";
}

TEST_F(SupervisorTest, SeveralAtOnceKeepTheirPipesApart) {
  // A descriptor that leaks into a sibling would hold the pipe open until the sibling ends.
  const std::filesystem::path slow = folder_.path() / "slow.sh", fast = folder_.path() / "fast.sh";
  std::ofstream{slow} << "#!/bin/bash\nsleep 1\n" << result_line() << '\n';
  std::ofstream{fast} << "#!/bin/bash\nsleep 0.1\n" << result_line() << '\n';
  for (const auto& program : {slow, fast}) ::chmod(program.c_str(), 0755);
  double fast_wall_s = 9;
  const auto start = [&](const std::filesystem::path& program, double* wall_s) {
    Supervision supervision;
    supervision.executable = program.string();
    Request request;
    const SupervisedRun outcome = supervise(entry, request, supervision);
    EXPECT_EQ(outcome.result.status, Status::passed) << outcome.result.reason;
    if (wall_s != nullptr) *wall_s = outcome.result.wall_s;
  };
  std::thread other{start, slow, nullptr};
  start(fast, &fast_wall_s);
  other.join();
  EXPECT_LT(fast_wall_s, 0.9);
}

}  // namespace
}  // namespace aisp::run
