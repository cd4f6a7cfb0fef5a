// SPDX-License-Identifier: Apache-2.0
#include "base/hardware_key.hpp"

#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <string>

namespace aisp::base {
namespace {

// As drivers name them.
constexpr const char* products[] = {"NVIDIA H100 80GB HBM3",
                                    "NVIDIA H100 80GB HBM2e",
                                    "NVIDIA H100 PCIe",
                                    "NVIDIA H100 NVL",
                                    "NVIDIA H200",
                                    "NVIDIA H200 NVL",
                                    "NVIDIA A100-SXM4-40GB",
                                    "NVIDIA A100-SXM4-80GB",
                                    "NVIDIA A100-PCIE-40GB",
                                    "NVIDIA A100 80GB PCIe",
                                    "NVIDIA GH200 480GB",
                                    "NVIDIA B200",
                                    "NVIDIA L40",
                                    "NVIDIA L40S",
                                    "NVIDIA GeForce RTX 4090",
                                    "NVIDIA GeForce RTX 4090 Laptop GPU",
                                    "NVIDIA RTX 6000 Ada Generation",
                                    "Quadro RTX 6000",
                                    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
                                    "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me",
                                    "NVIDIA H100 80GB HBM3 MIG 1g.10gb-me",
                                    "NVIDIA H100 80GB HBM3 MIG 1g.20gb",
                                    "NVIDIA H100 80GB HBM3 MIG 2g.20gb",
                                    "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
                                    "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb",
                                    "NVIDIA H100 PCIe MIG 1g.10gb",
                                    "NVIDIA H200 MIG 1g.18gb",
                                    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
                                    "NVIDIA A100-SXM4-80GB MIG 1g.10gb"};

TEST(GpuKey, EveryProductAndEveryMigProfileHasItsOwn) {
  std::map<std::string, std::string> owners;
  for (const char* product : products) {
    const auto [owner, is_new] = owners.emplace(gpu_key(product), product);
    EXPECT_TRUE(is_new) << product << " and " << owner->second << " are both " << owner->first;
  }
}

TEST(GpuKey, SaysAllButTheMaker) {
  EXPECT_EQ(gpu_key("NVIDIA H200"), "h200");
  EXPECT_EQ(gpu_key("NVIDIA H200 NVL"), "h200_nvl");
  EXPECT_EQ(gpu_key("NVIDIA H100 80GB HBM3"), "h100_80gb_hbm3");
  EXPECT_EQ(gpu_key("NVIDIA H100 PCIe"), "h100_pcie");
  EXPECT_EQ(gpu_key("NVIDIA A100-SXM4-80GB"), "a100_sxm4_80gb");
  EXPECT_EQ(gpu_key("Tesla V100-SXM2-16GB"), "v100_sxm2_16gb");
  EXPECT_EQ(gpu_key("NVIDIA GeForce RTX 4090"), "rtx_4090");
  EXPECT_EQ(gpu_key("NVIDIA A100-SXM4-40GB MIG 1g.5gb"), "a100_sxm4_40gb_mig_1g_5gb");
  EXPECT_EQ(gpu_key("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me"), "h100_80gb_hbm3_mig_1g_10gb_plus_me");
}

TEST(GpuKey, IsTheNameOfAFolderWhateverTheDriverSays) {
  EXPECT_EQ(gpu_key(""), "gpu");
  EXPECT_EQ(gpu_key("NVIDIA"), "gpu");
  EXPECT_EQ(gpu_key("../../etc"), "etc");
  for (const std::string& name : {std::string(100000, 'x'), std::string(200, '+'), std::string{"a/../b\n\"\xff\x01"}}) {
    const std::string key = gpu_key(name);
    EXPECT_LE(key.size(), 128u);
    for (const char c : key) EXPECT_TRUE((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_') << key;
  }
}

TEST(HardwareKey, CountsGpusAndTellsKindsApart) {
  EXPECT_EQ(hardware_key({}), "");
  EXPECT_EQ(hardware_key({"NVIDIA H200"}), "h200");
  EXPECT_EQ(hardware_key({"NVIDIA H200", "NVIDIA H200"}), "2x_h200");
  EXPECT_EQ(hardware_key({"NVIDIA L40S", "NVIDIA H200"}), "h200_and_l40s");
  EXPECT_EQ(hardware_key({"NVIDIA H200", "NVIDIA L40S", "NVIDIA H200"}), "2x_h200_and_l40s");
  EXPECT_NE(hardware_key({"NVIDIA H200", "NVIDIA H200 NVL"}), hardware_key({"NVIDIA H200", "NVIDIA H200"}));
}

}  // namespace
}  // namespace aisp::base
