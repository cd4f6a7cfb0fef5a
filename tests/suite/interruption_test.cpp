// SPDX-License-Identifier: Apache-2.0
// Interrupts that come at a certain moment of a run in this very process.
#include <gmock/gmock.h>
#include <signal.h>

#include "base/files.hpp"
#include "base/interrupt.hpp"
#include "suite/select.hpp"
#include "suite/suite.hpp"

namespace aisp::suite {
namespace {

class Interrupter final : public Watcher {
 public:
  enum class When { begin, end };
  explicit Interrupter(When when) : when_{when} {}
  void pair_begun(const std::string& /*target*/, const std::vector<int>& /*gpus*/) override { at(When::begin); }
  void pair_ended(const evidence::PairResult& /*result*/, std::size_t /*done*/, std::size_t /*pairs*/) override { at(When::end); }

 private:
  void at(When when) const {
    if (when == when_) ::raise(SIGTERM);
  }
  When when_;
};

class Interruption : public testing::Test {
 protected:
  Interruption() { base::install_interrupt_handlers(); }
  ~Interruption() override { base::reset_interrupt(); }

  Finished run(const std::vector<std::string>& targets, Interrupter::When when) {
    Task task{.selected = select(pair::registry(), targets)};
    task.configuration.in_process = true;
    task.configuration.fixed_iterations = true;
    task.configuration.iterations = 3;
    Interrupter watcher{when};
    return run_suite(task, RunFolder::create(artifacts_.path(), {}, "test"), watcher);
  }
  base::ScratchDirectory artifacts_{"aisp-interruption-"};
};

TEST_F(Interruption, EndsAPairThatRunsInThisProcess) {
  const Finished finished = run({"ch90:good"}, Interrupter::When::begin);
  EXPECT_EQ(finished.status, base::Exit::interrupted);
  ASSERT_EQ(finished.suite.pairs.size(), 1u);
  EXPECT_EQ(finished.suite.pairs[0].status, evidence::Status::skipped);
  EXPECT_EQ(finished.suite.pairs[0].reason, "interrupted in setup");
  EXPECT_FALSE(finished.suite.pairs[0].complete) << "--resume measures it";
}

TEST_F(Interruption, ThatComesWhenAllIsDoneInterruptedNothing) {
  const Finished finished = run({"ch90:good"}, Interrupter::When::end);
  EXPECT_EQ(finished.status, base::Exit::good);
  EXPECT_FALSE(finished.suite.interrupted);
  EXPECT_EQ(finished.suite.pairs[0].status, evidence::Status::passed);
}

TEST_F(Interruption, LeavesTheRestForAnotherTime) {
  const Finished finished = run({"ch90:good", "ch90:equal"}, Interrupter::When::end);
  EXPECT_EQ(finished.status, base::Exit::interrupted);
  EXPECT_TRUE(finished.suite.interrupted);
}

}  // namespace
}  // namespace aisp::suite
