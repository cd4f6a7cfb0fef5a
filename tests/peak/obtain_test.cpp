// SPDX-License-Identifier: Apache-2.0
// The parent's side, with scripts in place of the process that measures.
#include "peak/obtain.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "machine/gpu_lock.hpp"

namespace aisp::peak {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Obtain : public testing::Test {
 protected:
  Obtain() {
    setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
    setenv("AISP_LOCK_DIRECTORY", (folder_.path() / "locks").c_str(), 1);
    machine_.host.cpu = "CPU";
    machine_.host.cpus_usable = 4;
    machine_.driver_version = "580.159";
    machine_.gpus.resize(1);
    machine_.gpus[0].uuid = "GPU-1";
    machine_.gpus[0].name = "NVIDIA H200";
    options_.note = [this](const std::string& line) { notes_.push_back(line); };
    options_.executable = (folder_.path() / "fake").string();
  }
  ~Obtain() override {
    unsetenv("XDG_CACHE_HOME");
    unsetenv("AISP_LOCK_DIRECTORY");
    unsetenv("AISP_PEAK");
  }

  void child(const std::string& script) {
    std::ofstream{options_.executable} << "#!/bin/sh\n[ \"$1\" = __peak ] || exit 9\ncat > " << folder_.path().string()
                                       << "/request\n"
                                       << script;
    std::filesystem::permissions(options_.executable, std::filesystem::perms::owner_all);
  }
  static std::string figure(const std::string& id, const std::string& value) {
    return R"(echo '{"figure":{"id":")" + id + R"(","value":)" + value + R"(,"how":"x","why_not":""}}' >&3)" + "\n";
  }

  Obtained gpu_0() { return obtain_gpus(machine_, {0}, options_).front(); }
  void add_gpu() {
    machine::Gpu gpu = machine_.gpus[0];
    gpu.ordinal = static_cast<int>(machine_.gpus.size());
    gpu.uuid = "GPU-" + std::to_string(gpu.ordinal + 1);
    machine_.gpus.push_back(gpu);
    for (machine::Gpu& each : machine_.gpus) {
      each.peers.assign(machine_.gpus.size(), true);
      each.peers[static_cast<std::size_t>(each.ordinal)] = false;
    }
  }

  base::ScratchDirectory folder_;
  machine::Machine machine_;
  ObtainOptions options_;
  std::vector<std::string> notes_;
};

const std::string done = "echo '{\"done\":true}' >&3\n";

TEST_F(Obtain, MeasuresOnceThenReadsTheCache) {
  child(figure("hbm_copy", "4e12") + done);
  const auto first = gpu_0();
  ASSERT_TRUE(first.record) << first.why_not;
  EXPECT_FALSE(first.from_cache);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("measuring the ceilings of GPU 0 (NVIDIA H200)")));
  EXPECT_THAT(base::read_file(folder_.path() / "request"), HasSubstr("GPU-1"));
  child("exit 1");
  const auto second = gpu_0();
  ASSERT_TRUE(second.record);
  EXPECT_TRUE(second.from_cache);
  EXPECT_EQ(second.record->find("hbm_copy")->value, 4e12);
  machine_.driver_version = "590";
  EXPECT_FALSE(gpu_0().record) << "another driver is measured anew";
}

TEST_F(Obtain, AQuickRecordIsEnoughForWhoAsksForOne) {
  child(figure("hbm_copy", "4e12") + done);
  options_.quick = true;
  EXPECT_TRUE(gpu_0().record->quick);
  EXPECT_TRUE(gpu_0().from_cache);
  options_.quick = false;
  EXPECT_FALSE(gpu_0().from_cache);
  options_.quick = true;
  EXPECT_TRUE(gpu_0().from_cache) << "the full one serves too";
  options_.refresh = true;
  EXPECT_FALSE(gpu_0().from_cache);
}

TEST_F(Obtain, BrokenCacheIsOneWarningAndMeasuredAgain) {
  const auto file = cache_file(folder_.path() / "aisp", key_of(machine_.host));
  std::filesystem::create_directories(file.parent_path());
  std::ofstream{file} << "{";
  child(figure("host_copy", "1e11") + done);
  EXPECT_TRUE(obtain_host(machine_, options_).record);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr(file.string()), HasSubstr("measuring")));
  notes_.clear();
  EXPECT_TRUE(obtain_host(machine_, options_).from_cache);
  EXPECT_THAT(notes_, IsEmpty());
}

TEST_F(Obtain, WhatAChildToldBeforeItDiedIsKeptUntilTheNextCommand) {
  child(figure("hbm_copy", "4e12") + "echo '{\"crash\":[\"/no/such/file+0x10\"]}' >&3\nkill -SEGV $$\n");
  const auto obtained = gpu_0();
  ASSERT_TRUE(obtained.record);
  EXPECT_NE(obtained.record->find("hbm_copy"), nullptr);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("measuring"), HasSubstr("measuring the ceilings of GPU 0 again"),
                                  HasSubstr("killed by SIGSEGV), it crashed in\n#0 /no/such/file+0x10")));
  child(figure("hbm_copy", "4e12") + figure("fp32", "6e13") + done);
  const auto next = gpu_0();
  EXPECT_FALSE(next.from_cache);
  EXPECT_EQ(next.record->partial, "");
  EXPECT_TRUE(gpu_0().from_cache);
}

TEST_F(Obtain, ACrashThatHappensOnceCostsNoFigure) {
  const std::string once = (folder_.path() / "once").string();
  child(figure("hbm_copy", "4e12") + "mkdir " + once + " && kill -SEGV $$\n" +
        R"(echo '{"figure":{"id":"hbm_copy","value":0,"how":"","why_not":"no time"}}' >&3)" + "\n" + figure("fp32", "6e13") +
        done);
  const auto obtained = gpu_0();
  ASSERT_TRUE(obtained.record);
  EXPECT_EQ(obtained.record->partial, "");
  EXPECT_NE(obtained.record->find("fp32"), nullptr);
  EXPECT_NE(obtained.record->find("hbm_copy"), nullptr) << "the first process measured it";
  EXPECT_TRUE(gpu_0().from_cache);
}

TEST_F(Obtain, AChildWithoutAnyFigureSaysWhyNot) {
  child("echo '{\"trouble\":\"out of memory\"}' >&3\n");
  EXPECT_EQ(gpu_0().why_not, "out of memory");
  child("echo '{\"figure\":3}' >&3\n");
  EXPECT_THAT(gpu_0().why_not, HasSubstr("unreadable answer"));
  child("echo '{\"figure\":{\"id\":\"hbm_copy\",\"how\":\"x\",\"why_not\":\"\"}}' >&3\n");
  EXPECT_THAT(gpu_0().why_not, HasSubstr("figure.value is missing"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "aisp" / "peak")) << "failures are not kept";
}

// Each process of a chip's part waits until all of them run; of the links' parts no two may.
TEST_F(Obtain, ChipsAreMeasuredAtOnceAndLinksOneAfterTheOther) {
  for (int i = 0; i < 2; ++i) add_gpu();
  child("");
  std::ofstream{options_.executable} << "#!/bin/bash\ncd " << folder_.path().string() << R"(
request=$(cat)
case "$request" in
  *'"part":"chip"'*)
    touch chip.$$
    for i in $(seq 500); do [ $(ls chip.* | wc -l) = 3 ] && together=1 && break; sleep 0.01; done
    [ "$together" ] && echo '{"figure":{"id":"hbm_copy","value":4e12,"how":"x","why_not":""}}' >&3 ;;
  *'"part":"links"'*)
    ls busy.* 2>/dev/null && touch collision
    touch busy.$$; sleep 0.05; rm busy.$$
    echo "$request" >> links
    echo '{"figure":{"id":"peer_copy","value":4e11,"how":"x","why_not":""}}' >&3 ;;
esac
echo '{"done":true}' >&3
)";
  const auto obtained = obtain_gpus(machine_, {0, 1, 2}, options_);
  ASSERT_EQ(obtained.size(), 3u);
  for (const auto& each : obtained) {
    ASSERT_TRUE(each.record) << each.why_not;
    EXPECT_NE(each.record->find("hbm_copy"), nullptr) << "the chips were not measured at once";
    EXPECT_NE(each.record->find("peer_copy"), nullptr);
  }
  EXPECT_NE(obtained[0].record->key, obtained[1].record->key);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "collision")) << "links were measured at once";
  EXPECT_THAT(base::read_file(folder_.path() / "links"), HasSubstr(R"(["GPU-2","GPU-1","GPU-3"])")) << "with its peers";
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("the ceilings of GPUs 0, 1, 2 (NVIDIA H200)")));
  notes_.clear();
  EXPECT_TRUE(obtain_gpus(machine_, {2, 0}, options_)[1].from_cache);
  EXPECT_THAT(notes_, IsEmpty());
}

TEST_F(Obtain, WhatTheCallerLockedIsNotLockedAgain) {
  child(figure("hbm_copy", "4e12") + done);
  const base::FileLock held = machine::lock_gpu("GPU-1", "the caller");
  EXPECT_THROW(gpu_0(), base::Error);
  options_.locked = {0};
  EXPECT_TRUE(gpu_0().record);
}

TEST_F(Obtain, EnsureTurnsTroubleIntoANoteAndCanBeSwitchedOff) {
  child("exit 3");
  ensure(machine_, {0}, options_);
  EXPECT_THAT(notes_, testing::Contains(HasSubstr("the ceilings of GPU 0 are not measured: ")));
  notes_.clear();
  setenv("AISP_PEAK", "off", 1);
  ensure(machine_, {0}, options_);
  EXPECT_THAT(notes_, IsEmpty());
  unsetenv("AISP_PEAK");
  ensure(machine_, {}, options_);
  EXPECT_THAT(notes_, IsEmpty()) << "a run without GPUs waits for nothing";
}

// In one process for each GPU the figures, then in one for all the links; each GPU keeps its own number.
TEST_F(Obtain, LinksAreMeasuredAfterAllGpusAtOnceAndKept) {
  add_gpu();
  add_gpu();
  child(
      "if grep -q '\"subject\":\"fabric\"' " + (folder_.path() / "request").string() +
      R"(; then echo '{"record":{"schema_version":1,"key":{"of":"","model":"","driver":"","power_limit_w":0,"cpus":0},)"
      R"("measured_utc":"2026","gpus":[{"ordinal":0,"uuid":"","name":"","figures":[]},)"
      R"({"ordinal":1,"uuid":"","name":"","figures":[]}],"pairs":[{"from_gpu":0,"to_gpu":1,"path":"","direct":true,"bytes_s":3e11,)"
      R"("both_bytes_s":6e11,"latency_s":7e-7}],"nccl":"","times":[],"missing":["collectives: no NCCL"]}}' >&3; else )" +
      figure("hbm_read", "4e12") + "fi\n" + done);
  const machine::Topology topology{.machine = machine_, .gpus = std::vector<machine::GpuTopology>(3)};
  const auto obtained = obtain_fabric(topology, {0, 2}, options_);
  ASSERT_TRUE(obtained.record) << obtained.why_not;
  const Fabric& fabric = *obtained.record->fabric;
  EXPECT_THAT(fabric.missing, ElementsAre("collectives: no NCCL"));
  ASSERT_EQ(fabric.gpus.size(), 2u);
  EXPECT_EQ(fabric.gpus[1].ordinal, 2);
  EXPECT_EQ(fabric.gpus[1].uuid, "GPU-3");
  EXPECT_EQ(fabric.gpus[1].find("hbm_read")->value, 4e12);
  EXPECT_NE(fabric.find(0, 2), nullptr);
  EXPECT_TRUE(load(folder_.path() / "aisp", fabric_key(machine_, {0, 2}), Subject::fabric).record);
  EXPECT_FALSE(load(folder_.path() / "aisp", fabric_key(machine_, {0, 1}), Subject::fabric).record);
}

TEST_F(Obtain, LinksThatHangSayAtWhat) {
  child(R"(echo '{"next":"NCCL 2.28.3 was making communicators for 8 GPUs"}' >&3; sleep 30)");
  const PeakRecord answer =
      ask({.gpus = {"GPU-1"}, .subject = Subject::fabric, .limit_s = 0.5, .executable = options_.executable});
  EXPECT_THAT(answer.partial, HasSubstr("not done within 500 ms (NCCL 2.28.3 was making communicators for 8 GPUs)"));
}

}  // namespace
}  // namespace aisp::peak
