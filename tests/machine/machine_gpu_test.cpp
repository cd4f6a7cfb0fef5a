// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <aisp/library.hpp>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/system/clock.hpp"
#include "machine/ceilings.hpp"
#include "machine/doctor/doctor.hpp"
#include "machine/machine.hpp"
#include "machine/needs.hpp"
#include "machine/nvml.hpp"
#include "machine/topology/topology.hpp"
#include "places.hpp"

namespace aisp::machine {
namespace {

class OnAGpu : public testing::Test {
 protected:
  static void SetUpTestSuite() { machine_ = probe(60, aisp_path()); }
  void SetUp() override {
    if (machine_.gpus.empty()) GTEST_SKIP() << "no CUDA device: " << machine_.cuda_error;
  }
  static const Gpu& gpu() { return machine_.gpus.front(); }
  static inline Machine machine_;
};

TEST_F(OnAGpu, TheProbeKnowsItsProperties) {
  EXPECT_THAT(gpu().uuid, testing::MatchesRegex("(GPU|MIG)-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+"));
  EXPECT_GE(gpu().sm, 50);
  EXPECT_GT(gpu().memory_bytes, std::uint64_t{1} << 30);
  EXPECT_GT(gpu().sm_count, 0);
  EXPECT_GT(gpu().l2_bytes, 0u);
  EXPECT_GT(gpu().clock_khz, 100'000);
  EXPECT_GT(machine_.driver_cuda_version, 0);
  EXPECT_NE(machine_.driver_version, "");
  EXPECT_FALSE(unmet({.min_sm = gpu().sm}, Device::gpu, machine_, {0}));
  EXPECT_GT(theoretical_peaks(gpu()).memory_bytes_s, 1e10);
}

TEST_F(OnAGpu, TheManagementLibraryKnowsTheSameGpu) {
  if (!Nvml::get().available()) GTEST_SKIP() << Nvml::get().error();
  const auto device = Nvml::get().device(gpu().uuid);
  ASSERT_TRUE(device) << gpu().uuid;
  const auto sample = device->sample();
  ASSERT_TRUE(sample);
  EXPECT_GT(sample->sm_clock_mhz, 0);
  EXPECT_LE(sample->sm_clock_mhz, gpu().clock_khz / 1000 + 50);
  EXPECT_GT(sample->power_w, 1);
  EXPECT_GT(sample->temperature_c, 5);
  EXPECT_TRUE(gpu().condition.has_value());
}

TEST_F(OnAGpu, ASampleIsTakenInLessThanAMillisecond) {
  const auto device = Nvml::get().device(gpu().uuid);
  if (!device) GTEST_SKIP() << Nvml::get().error();
  std::vector<double> times_s;
  for (int i = 0; i < 101; ++i) {
    const double before = base::monotonic_s();
    device->sample();
    times_s.push_back(base::monotonic_s() - before);
  }
  std::nth_element(times_s.begin(), times_s.begin() + 50, times_s.end());
  RecordProperty("median_us", static_cast<int>(times_s[50] * 1e6));
  EXPECT_LT(times_s[50], 1e-3);
}

TEST_F(OnAGpu, TheDoctorHasSomethingToSayAboutIt) {
  bool named = false;
  for (const Diagnosis& finding : examine(machine_))
    named = named || (finding.name == "GPU 0" && finding.what.starts_with(gpu().name));
  EXPECT_TRUE(named);
}

TEST_F(OnAGpu, TheTopologyAddsUp) {
  const Topology topology = probe_topology(120, aisp_path());
  ASSERT_EQ(topology.gpus.size(), machine_.gpus.size());
  const ClusterFindings& clusters = topology.gpus[0].clusters;
  if (!has_dsmem(gpu())) GTEST_SKIP() << clusters.groups_error;
  EXPECT_GE(clusters.max_size, 8) << clusters.max_size_error;
  ASSERT_FALSE(clusters.cluster_groups.empty()) << clusters.groups_error;
  EXPECT_EQ(std::accumulate(clusters.cluster_groups.begin(), clusters.cluster_groups.end(), clusters.unplaced_sms),
            gpu().sm_count);
  // A thread block cluster of the largest size fits into one GPC, a block to an SM, or shares SMs.
  EXPECT_GE(clusters.cluster_groups.front(), 8);
}

TEST_F(OnAGpu, LocatedLibrariesOpen) {
  for (const Library library :
       {Library::cublaslt, Library::cublas, Library::nvrtc, Library::cupti, Library::nvml, Library::nccl, Library::cudnn})
    EXPECT_NO_THROW(SharedLibrary::available(library) ? &SharedLibrary::open(library) : nullptr) << name_of(library);
}

}  // namespace
}  // namespace aisp::machine
