// SPDX-License-Identifier: Apache-2.0
#include "machine/needs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "machine/fake_root.hpp"

namespace aisp::machine {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

bool everything(Library) { return true; }
bool nothing(Library) { return false; }

std::string why(const Needs& needs, const Machine& machine, const std::vector<int>& gpus = {0}) {
  return unmet(needs, Device::gpu, machine, gpus, everything).value_or(Obstacle{}).text();
}

TEST(Needs, OfAnOrdinaryPairAreMetByAnH200) { EXPECT_EQ(why({}, machine_with({h200()})), ""); }

TEST(Needs, SayPlainlyThatThereIsNoGpu) {
  EXPECT_EQ(why({}, machine_without_gpu(), {}), "no CUDA device: no NVIDIA driver; install NVIDIA driver 580 or newer");
}

TEST(Needs, OfHostPairsHaveNothingToDoWithGpus) {
  const Machine machine = machine_without_gpu();
  EXPECT_FALSE(unmet({}, Device::host, machine, {}, everything));
  EXPECT_THAT(unmet({.cpus = 64}, Device::host, machine, {}, everything).value().text(),
              StartsWith("needs 64 CPUs, this process may use 16"));
  EXPECT_THAT(unmet({.host_memory = std::size_t{200} << 30}, Device::host, machine, {}, everything).value().text(),
              HasSubstr("needs 215 GB of host memory, 107 GB are available"));
}

TEST(Needs, NameTheChipThatWouldDo) {
  const Machine a100 = machine_with({other_gpu("NVIDIA A100-SXM4-80GB", 80)});
  EXPECT_THAT(why({.min_sm = 90}, a100), StartsWith("needs sm_90 or newer, this GPU (NVIDIA A100-SXM4-80GB) is sm_80"));
  const Machine b200 = machine_with({other_gpu("NVIDIA B200", 100)});
  EXPECT_THAT(why({.min_sm = 90, .max_sm = 90}, b200),
              StartsWith("is written for sm_90 alone, this GPU (NVIDIA B200) is sm_100"));
  EXPECT_EQ(why({.min_sm = 90, .max_sm = 103}, b200), "");
}

TEST(Needs, CountTheGpusGivenAndThoseThere) {
  const Machine one = machine_with({h200()}), four = machine_with({h200(), h200(), h200(), h200()});
  EXPECT_THAT(why({.gpus = 2, .peer_access = true}, one), StartsWith("needs 2 GPUs with peer access, found 1"));
  EXPECT_THAT(why({.gpus = 2}, four, {3}), AllOf(HasSubstr("1 of 4 may be used"), HasSubstr("--gpus")));
  EXPECT_EQ(why({.gpus = 2, .peer_access = true}, four, {1, 3}), "");
}

TEST(Needs, LookAtTheGpusThatWouldBeUsedOnly) {
  Machine machine = machine_with({h200(), other_gpu("NVIDIA L40S", 89), h200()});
  EXPECT_EQ(why({.min_sm = 90}, machine, {2, 1}), "");
  EXPECT_THAT(why({.min_sm = 90}, machine, {1, 2}), HasSubstr("L40S"));
  machine.gpus[0].peers[2] = false;
  EXPECT_THAT(why({.gpus = 2, .peer_access = true}, machine, {0, 2}), HasSubstr("GPU 0 cannot reach GPU 2"));
  EXPECT_EQ(why({.gpus = 2, .peer_access = true}, machine, {0, 1}), "");
}

TEST(Needs, KnowChipsWithoutDistributedSharedMemory) {
  EXPECT_TRUE(has_dsmem(h200()));
  EXPECT_TRUE(has_dsmem(other_gpu("NVIDIA B200", 100)));
  EXPECT_FALSE(has_dsmem(other_gpu("NVIDIA GB10", 121)));
  EXPECT_FALSE(has_dsmem(other_gpu("NVIDIA A100-SXM4-80GB", 80)));
  Gpu without_clusters = h200();
  without_clusters.attributes[cudaDevAttrClusterLaunch] = 0;
  EXPECT_FALSE(has_dsmem(without_clusters));
  EXPECT_THAT(why({.dsmem = true}, machine_with({other_gpu("NVIDIA GB10", 121)})), HasSubstr("needs distributed shared memory"));
}

TEST(Needs, ExplainTheGapOfTcgen05) {
  for (const int sm : {100, 103, 110}) EXPECT_TRUE(tcgen05_support(other_gpu("x", sm)).yes) << sm;
  for (const int sm : {90, 120, 121, 130}) EXPECT_FALSE(tcgen05_support(other_gpu("x", sm)).yes) << sm;
  EXPECT_THAT(why({.tcgen05 = true}, machine_with({other_gpu("NVIDIA GB10", 121, 128)})),
              AllOf(StartsWith("needs tcgen05: sm_121"), HasSubstr("neither tcgen05 nor tensor memory"), HasSubstr("sm_100")));
  EXPECT_THAT(why({.tcgen05 = true}, machine_with({h200()})), HasSubstr("older than Blackwell"));
  EXPECT_THAT(why({.min_sm = 100, .tcgen05 = true}, machine_with({h200()})), StartsWith("needs tcgen05: sm_90 (NVIDIA H200)"))
      << "the reason says more than that the GPU is old";
}

TEST(Needs, KnowWhichCodeTheExecutableHas) {
  const auto why_built = [](const Needs& needs, const Gpu& gpu, std::string_view built) {
    return unmet(needs, Device::gpu, machine_with({gpu}), {0}, everything, built).value_or(Obstacle{}).text();
  };
  const Gpu b200 = other_gpu("NVIDIA B200", 100), b300 = other_gpu("NVIDIA B300", 103);
  constexpr Needs tcgen05{.min_sm = 100, .tcgen05 = true};
  EXPECT_EQ(why_built({}, h200(), "80-real,90a-real"), "");
  EXPECT_THAT(why_built({}, b200, "90a-real"),
              AllOf(StartsWith("cannot start: this executable has no code for sm_100a (it has 90a-real); "),
                    HasSubstr("AISP_CUDA_ARCHITECTURES=100a-real")));
  EXPECT_EQ(why_built(tcgen05, b200, "90a-real,100a-real"), "");
  EXPECT_THAT(why_built(tcgen05, b300, "90a-real,100a-real"), HasSubstr("no code for sm_103a"));
  EXPECT_EQ(why_built(tcgen05, b300, "100f-real"), "") << "the family's code runs on its later members";
  EXPECT_THAT(why_built(tcgen05, b200, "100-real"), HasSubstr("no code for sm_100a")) << "plain code has no tcgen05";
  constexpr Needs wgmma{.min_sm = 90, .max_sm = 90};
  EXPECT_EQ(why_built(wgmma, h200(), "90a-real"), "");
  EXPECT_THAT(why_built(wgmma, h200(), "80-real,90-real"), HasSubstr("no code for sm_90a")) << "plain code has no wgmma";
  EXPECT_EQ(why_built({.min_sm = 90}, h200(), "90-real"), "");
}

TEST(Needs, AreAskedOfAllArchitecturesOfAnExecutable) {
  EXPECT_TRUE(has_code_for({}, "80-real"));
  EXPECT_TRUE(has_code_for({}, "90a-real")) << "not for the least of its GPUs, but for one";
  EXPECT_TRUE(has_code_for({.min_sm = 89}, "80-real")) << "machine code runs on later chips of its generation";
  EXPECT_FALSE(has_code_for({.min_sm = 90}, "80-real,89-real"));
  EXPECT_TRUE(has_code_for({.min_sm = 90}, "80")) << "PTX is translated";
  EXPECT_FALSE(has_code_for({.min_sm = 100}, "90a-real"));
  constexpr Needs wgmma{.min_sm = 90, .max_sm = 90}, tcgen05{.min_sm = 100, .tcgen05 = true};
  EXPECT_TRUE(has_code_for(wgmma, "80-real,90a-real"));
  EXPECT_FALSE(has_code_for(wgmma, "80,90-real,100a-real"));
  EXPECT_TRUE(has_code_for(tcgen05, "103a-real"));
  EXPECT_FALSE(has_code_for(tcgen05, "90a-real,120a-real")) << "which has specific code and no tcgen05";
  EXPECT_TRUE(has_code_for({.min_sm = 130}, "130a-real")) << "of a chip that the table does not know";
  EXPECT_TRUE(has_code_for(wgmma, "native")) << "a list that tells nothing";
}

TEST(Needs, WeighMemoryAtTheScaleThatWouldRun) {
  const Needs needs{.device_memory = std::size_t{20'000'000'000}};
  EXPECT_EQ(why(needs, machine_with({h200()})), "");
  EXPECT_THAT(why(needs, machine_with({other_gpu("NVIDIA A2", 86, 16)})),
              StartsWith("needs 20.0 GB of GPU memory, NVIDIA A2 has 16.0 GB"));
  EXPECT_THAT(why(needs, machine_with({other_gpu("small", 86, 8)})), HasSubstr("needs 10.0 GB"));
}

TEST(Needs, NameAttributesLibrariesAndDrivers) {
  EXPECT_EQ(why({.attributes = {cudaDevAttrCooperativeLaunch}}, machine_with({h200()})), "");
  EXPECT_THAT(why({.attributes = {cudaDevAttrConcurrentManagedAccess}}, machine_with({h200()})),
              HasSubstr("managed memory that CPU and GPU"));
  EXPECT_THAT(why({.driver = 13010}, machine_with({h200()})), HasSubstr("needs a driver for CUDA 13.1, this one supports 13.0"));
  const Needs cudnn{.libraries = {Library::cudnn}};
  EXPECT_EQ(why(cudnn, machine_with({h200()})), "");
  EXPECT_THAT(unmet(cudnn, Device::gpu, machine_with({h200()}), {0}, nothing).value().text(),
              AllOf(HasSubstr("needs cuDNN: libcudnn.so.9 not found"), HasSubstr("AISP_LIBRARY_PATH")));
}

TEST(Needs, NameTheCommandThatBuildsCutlassLibrary) {
  const Needs cutlass{.libraries = {Library::cutlass}};
  EXPECT_EQ(why(cutlass, machine_with({h200()})), "");
  EXPECT_THAT(unmet(cutlass, Device::gpu, machine_with({h200()}), {0}, nothing).value().text(),
              AllOf(StartsWith("needs CUTLASS: libaisp_cutlass.so not found; ./setup.sh --cutlass builds it"),
                    HasSubstr("AISP_LIBRARY_PATH")));
}

TEST(MemoryScale, FollowsTheSizesThatGpusAreSoldIn) {
  EXPECT_EQ(memory_scale(150'120'000'000), 1);
  EXPECT_EQ(memory_scale(15'830'000'000), 1) << "a 16 GB card shows a little less";
  EXPECT_EQ(memory_scale(12'000'000'000), 0.5);
  EXPECT_EQ(memory_scale(8'000'000'000), 0.5);
  EXPECT_EQ(memory_scale(4'000'000'000), 0.25);
  EXPECT_EQ(memory_scale(2'000'000'000), 0.1);
  const Machine mixed = machine_with({h200(), other_gpu("small", 86, 8)});
  EXPECT_EQ(memory_scale(mixed, {0}), 1);
  EXPECT_EQ(memory_scale(mixed, {0, 1}), 0.5);
  EXPECT_EQ(memory_scale(machine_without_gpu(), {}), 1);
}

}  // namespace
}  // namespace aisp::machine
