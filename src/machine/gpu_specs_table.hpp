// SPDX-License-Identifier: Apache-2.0
// The facts of gpu_specs.hpp. Not for use beyond gpu_specs.cpp.
#pragma once
#include "machine/gpu_specs.hpp"

namespace aisp::machine {

// One sheet's figures, with the doubt that all of them share; the last word of each function says what the sheet states.
struct Sheet {
  SourceText text;
  std::string_view doubt{};
  constexpr Fact operator()(double value) const { return {value, &text, Reading::stated, doubt}; }
  constexpr Fact sparse(double value) const { return {value / 2, &text, Reading::half, doubt}; }
  constexpr Fact total(double value, int gpus) const { return {value / gpus, &text, Reading::share, doubt}; }
  constexpr Fact sparse_total(double value, int gpus) const { return {value / 2 / gpus, &text, Reading::half_share, doubt}; }
  constexpr Fact derived(double value) const { return {value, &text, Reading::derived, "no document states it"}; }
  constexpr Fact slow_fp64(double fp32) const { return {fp32 / 64, &text, Reading::slow_fp64, doubt}; }
  constexpr Fact rt_cores(double value) const { return {value, &text, Reading::rt_cores, doubt}; }
  constexpr Fact dies(double value, int count) const { return {value * count, &text, Reading::dies, doubt}; }
};

inline constexpr double tera = 1e12, giga = 1e9, mib = 1 << 20;
inline constexpr double c2c = 450e9;  // NVLink-C2C
inline constexpr std::string_view second_hand = "known from others who quote this document, not from the document";
inline constexpr std::string_view b300_fp64 = "the data sheet is quoted with 1.2 to 1.3 TFLOP/s";
inline constexpr std::string_view eight_terabytes = "8 TB/s is quoted as well";
inline constexpr std::string_view of_whole_chip = "the whitepaper states it of the chip, not of this product";
inline constexpr Sheet a100{{"NVIDIA A100 datasheet",
                             "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
                             "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"}};
inline constexpr Sheet ampere{
    {"NVIDIA A100 architecture whitepaper",
     "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf"}};
inline constexpr Sheet a10g{{"NVIDIA A10G datasheet for AWS",
                             "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"}};
inline constexpr Sheet aws_g5{{"Amazon EC2 G5 instances", "https://aws.amazon.com/ec2/instance-types/g5/"}};
inline constexpr Sheet ga102{{"NVIDIA Ampere GA102 architecture whitepaper",
                              "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"}};
inline constexpr Sheet h100{{"NVIDIA H100 datasheet", "https://www.nvidia.com/en-us/data-center/h100/"}};
inline constexpr Sheet hopper{{"NVIDIA H100 architecture whitepaper", "https://resources.nvidia.com/en-us-tensor-core"}};
inline constexpr Sheet h100_device{
    {"what CUDA reports of an H100", "https://docs.nvidia.com/cuda/cuda-runtime-api/structcudaDeviceProp.html"}};
inline constexpr Sheet h200{{"NVIDIA H200 datasheet", "https://www.nvidia.com/en-us/data-center/h200/"}};
inline constexpr Sheet h200_device{
    {"what CUDA reports of an H200", "https://docs.nvidia.com/cuda/cuda-runtime-api/structcudaDeviceProp.html"}};
inline constexpr Sheet hgx{{"NVIDIA HGX specifications", "https://www.nvidia.com/en-us/data-center/hgx/"}};
inline constexpr Sheet blackwell{{"NVIDIA Blackwell datasheet", "https://resources.nvidia.com/en-us-blackwell-architecture"}};
inline constexpr Sheet ultra{blackwell.text, second_hand};
inline constexpr Sheet blackwell_tuning{
    {"NVIDIA Blackwell tuning guide", "https://docs.nvidia.com/cuda/blackwell-tuning-guide/"}};
inline constexpr Sheet blackwell_devices{
    {"what CUDA reports of a B200 and a GB200", "https://docs.nvidia.com/cuda/cuda-runtime-api/structcudaDeviceProp.html"},
    second_hand};
inline constexpr Sheet gb200{{"NVIDIA GB200 NVL72 specifications", "https://www.nvidia.com/en-us/data-center/gb200-nvl72/"}};
inline constexpr Sheet spark{
    {"NVIDIA DGX Spark specifications", "https://www.nvidia.com/en-us/products/workstations/dgx-spark/"}};
inline constexpr Sheet gb10{{"NVIDIA GB10 at Hot Chips 2025", "https://hotchips.org/"}, second_hand};
inline constexpr Sheet mi300x{
    {"AMD Instinct MI300X datasheet", "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"}};
inline constexpr Sheet rocm{{"AMD GPU specifications of ROCm", "https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html"}};
inline constexpr Sheet ada{{"NVIDIA Ada architecture whitepaper",
                            "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"}};
inline constexpr Sheet l40s{{"NVIDIA L40S datasheet", "https://www.nvidia.com/en-us/data-center/l40s/"}};
inline constexpr Fact unstated{};

inline constexpr std::array<Fact, rate_kinds> a100_rates = {a100(9.7 * tera), a100(19.5 * tera), a100(19.5 * tera),
                                                            a100(156 * tera), a100(312 * tera),  a100(312 * tera),
                                                            unstated,         a100(624 * tera),  unstated};

// One H200: driver 580.159, CUDA 13.0, 700 W cap; the peer copy over NVLink by another program, the reduction over two of them.
inline constexpr RecordedCeilings recorded_h200{
    .gpu = "NVIDIA H200",
    .on = "an H200",
    .copy_bytes_s = 4.25 * tera,
    .read_bytes_s = 4.57 * tera,
    .l2_bytes_s = 9.1 * tera,
    .flops_s = {33.4 * tera, 62.9 * tera, 65.8 * tera, 413 * tera, 790 * tera, 790 * tera, 1480 * tera, 1690 * tera},
    .host_to_device_bytes_s = 55.5 * giga,
    .device_to_host_bytes_s = 55.4 * giga,
    .peer_bytes_s = 396 * giga,
    .peer_pull_bytes_s = 372 * giga,
    .all_reduce_bytes_s = 325 * giga,
    .all_reduce_by = "2 GPUs, NCCL 2.28",
    .launch_s = 0.685e-6,
};

// Rates in the order of NumberType: fp64, fp64_tensor, fp32, tf32, fp16, bf16, fp8, int8, fp4.
// Rows without a key are products of which aisp needs the bandwidth limit alone.
inline constexpr std::array gpu_table = {
    GpuSpec{.key = "a100-80gb",
            .family = "a100",
            .name = "NVIDIA A100 SXM 80 GB",
            .reported = "A100-SXM4-80GB",
            .memory_limit_bytes_s = 2.04 * tera,
            .memory_bytes = a100(80 * giga),
            .memory_bytes_s = a100(2.039 * tera),
            .flops_s = a100_rates,
            .link_bytes_s = a100(600 * giga),
            .tdp_w = a100(400),
            .sms = ampere(108),
            .l2_bytes = ampere(40 * mib)},
    GpuSpec{.key = "a100-40gb",
            .family = "a100",
            .name = "NVIDIA A100 SXM 40 GB",
            .reported = "A100-SXM4-40GB",
            .memory_limit_bytes_s = 1.56 * tera,
            .memory_bytes = a100(40 * giga),
            .memory_bytes_s = a100(1.555 * tera),
            .flops_s = a100_rates,
            .link_bytes_s = a100(600 * giga),
            .tdp_w = a100(400),
            .sms = ampere(108),
            .l2_bytes = ampere(40 * mib)},
    GpuSpec{.key = "a10g",
            .family = "a10g",
            .name = "NVIDIA A10G",
            .reported = "A10G",
            .memory_limit_bytes_s = 0.601 * tera,
            .memory_bytes = a10g(24 * giga),
            .memory_bytes_s = a10g(0.600 * tera),
            .flops_s = {ga102.slow_fp64(31.52 * tera), unstated, a10g(31.52 * tera), a10g(35 * tera), a10g(70 * tera),
                        a10g(70 * tera), unstated, a10g(140 * tera), unstated},
            .link_bytes_s = a10g(0),
            .tdp_w = a10g(300),
            .sms = aws_g5.rt_cores(80).doubted("the datasheet's fp32 rate is that of 72 at 1.71 GHz"),
            .l2_bytes = ga102(6 * mib).doubted(of_whole_chip)},
    GpuSpec{.key = "h100-sxm",
            .family = "h100",
            .name = "NVIDIA H100 SXM",
            .reported = "H100 80GB HBM3",
            .memory_limit_bytes_s = 3.36 * tera,
            .memory_bytes = h100(80 * giga),
            .device_bytes = h100_device(85.0 * giga),
            .memory_bytes_s = h100(3.35 * tera),
            .flops_s = {hopper(33.5 * tera), hopper(66.9 * tera), hopper(66.9 * tera), hopper(494.7 * tera), hopper(989.4 * tera),
                        hopper(989.4 * tera), hopper(1978.9 * tera), hopper(1978.9 * tera), unstated},
            .link_bytes_s = h100(900 * giga),
            .tdp_w = h100(700),
            .sms = hopper(132),
            .l2_bytes = hopper(50 * mib)},
    GpuSpec{.key = "h100-pcie",
            .family = "h100",
            .name = "NVIDIA H100 PCIe",
            .reported = "H100 PCIe",
            .memory_limit_bytes_s = 2.04 * tera,
            .memory_bytes = h100(80 * giga),
            .memory_bytes_s = h100(2.0 * tera),
            .flops_s = {h100(26 * tera), h100(51 * tera), h100(51 * tera), h100.sparse(756 * tera), h100.sparse(1513 * tera),
                        h100.sparse(1513 * tera), h100.sparse(3026 * tera), h100.sparse(3026 * tera), unstated},
            .link_bytes_s = h100(600 * giga),
            .tdp_w = h100(350),
            .sms = hopper(114),
            .l2_bytes = hopper(50 * mib)},
    GpuSpec{.reported = "GH200 144G", .memory_limit_bytes_s = 4.9 * tera, .cpu_link_bytes_s = c2c},
    GpuSpec{.reported = "GH200 480GB", .memory_limit_bytes_s = 4.0 * tera, .cpu_link_bytes_s = c2c},
    GpuSpec{.reported = "GH200", .memory_limit_bytes_s = 4.9 * tera, .cpu_link_bytes_s = c2c},
    GpuSpec{.key = "h200",
            .family = "h200",
            .name = "NVIDIA H200 SXM",
            .reported = "H200",
            .memory_limit_bytes_s = 4.8 * tera,
            .memory_bytes = h200(141 * giga),
            .device_bytes = h200_device(150.1 * giga),
            .memory_bytes_s = h200(4.8 * tera),
            .flops_s = {h200(34 * tera), h200(67 * tera), h200(67 * tera), h200.sparse(989 * tera), h200.sparse(1979 * tera),
                        h200.sparse(1979 * tera), h200.sparse(3958 * tera), h200.sparse(3958 * tera), unstated},
            .link_bytes_s = h200(900 * giga),
            .tdp_w = h200(700),
            .sms = h200_device(132),
            .l2_bytes = h200_device(60 * mib),
            .recorded = &recorded_h200},
    GpuSpec{.key = "gb200",
            .family = "gb200",
            .name = "NVIDIA GB200 (one of two GPUs)",
            .reported = "GB200",
            .memory_limit_bytes_s = 8.0 * tera,
            .memory_bytes = gb200.total(372 * giga, 2),
            .memory_bytes_s = gb200.total(16 * tera, 2),
            .flops_s = {gb200.total(2'880 * tera, 72), gb200.total(2'880 * tera, 72), gb200.total(5'760 * tera, 72),
                        gb200.sparse_total(180'000 * tera, 72), gb200.sparse_total(360'000 * tera, 72),
                        gb200.sparse_total(360'000 * tera, 72), gb200.sparse_total(720'000 * tera, 72),
                        gb200.sparse_total(720'000 * tera, 72), gb200.sparse_total(1'440'000 * tera, 72)},
            .link_bytes_s = gb200.total(3'600 * giga, 2),
            .cpu_link_bytes_s = c2c,
            .tdp_w = blackwell(1'200),
            .sms = blackwell_devices(152),
            .l2_bytes = blackwell_tuning(126 * mib)},
    GpuSpec{.key = "gb300",
            .family = "gb300",
            .name = "NVIDIA GB300 (one of two GPUs)",
            .reported = "GB300",
            .memory_limit_bytes_s = 8.0 * tera,
            .memory_bytes = ultra(279 * giga),
            .memory_bytes_s = ultra(8.0 * tera),
            .flops_s = {unstated, unstated, ultra(80 * tera), ultra.sparse(2'500 * tera), ultra.sparse(5'000 * tera),
                        ultra.sparse(5'000 * tera), ultra.sparse(10'000 * tera), ultra.sparse(330 * tera), ultra(15'000 * tera)},
            .link_bytes_s = ultra(1'800 * giga),
            .cpu_link_bytes_s = c2c,
            .tdp_w = ultra(1'400)},
    GpuSpec{
        .key = "b300",
        .family = "b300",
        .name = "NVIDIA B300 (HGX)",
        .reported = "B300",
        .memory_limit_bytes_s = 8.0 * tera,
        .memory_bytes = blackwell(270 * giga).doubted("the HGX specifications are quoted with 2.3 TB of eight, 288 GB of one"),
        .memory_bytes_s = blackwell(7.7 * tera).doubted(eight_terabytes),
        .flops_s = {hgx.total(10 * tera, 8).doubted(b300_fp64), hgx.total(10 * tera, 8).doubted(b300_fp64),
                    hgx.total(600 * tera, 8), hgx.sparse_total(18'000 * tera, 8), hgx.sparse_total(36'000 * tera, 8),
                    hgx.sparse_total(36'000 * tera, 8), hgx.sparse_total(72'000 * tera, 8),
                    blackwell(150 * tera)
                        .doubted("the HGX specifications are quoted with 2 POP/s of eight with sparsity, 125 TOP/s of one"),
                    hgx.total(105'000 * tera, 8).doubted("the data sheet is quoted with 14000 TFLOP/s")},
        .link_bytes_s = hgx(1'800 * giga),
        .tdp_w = blackwell(1'100)},
    GpuSpec{
        .key = "b200",
        .family = "b200",
        .name = "NVIDIA B200 (HGX)",
        .reported = "B200",
        .memory_limit_bytes_s = 8.0 * tera,
        .memory_bytes = blackwell(180 * giga).doubted("192 GB is quoted as well"),
        .memory_bytes_s = blackwell(7.7 * tera).doubted(eight_terabytes),
        .flops_s = {hgx.total(296 * tera, 8), hgx.total(296 * tera, 8), hgx.total(600 * tera, 8),
                    hgx.sparse_total(18'000 * tera, 8), hgx.sparse_total(36'000 * tera, 8), hgx.sparse_total(36'000 * tera, 8),
                    hgx.sparse_total(72'000 * tera, 8), hgx.sparse_total(72'000 * tera, 8), hgx.total(72'000 * tera, 8)},
        .link_bytes_s = hgx(1'800 * giga),
        .tdp_w = blackwell(1'000),
        .sms = blackwell_devices(148),
        .l2_bytes = blackwell_tuning(126 * mib)},
    GpuSpec{.key = "gb10",
            .family = "gb10",
            .name = "NVIDIA GB10 (DGX Spark)",
            .reported = "GB10",
            .memory_limit_bytes_s = 0.301 * tera,
            .memory_bytes = spark(128 * giga),
            .memory_bytes_s = spark(0.273 * tera),
            .flops_s = {unstated, unstated, gb10(31 * tera), unstated, spark.derived(125 * tera), spark.derived(125 * tera),
                        spark.derived(250 * tera), unstated, spark.sparse(1'000 * tera)},
            .link_bytes_s = spark(0),
            .cpu_link_bytes_s = c2c,
            .tdp_w = spark(140),
            .sms = gb10(48),
            .l2_bytes = gb10(24 * mib)},
    GpuSpec{.key = "mi300x",
            .family = "mi300x",
            .name = "AMD Instinct MI300X",
            .reported = "MI300X",
            .memory_limit_bytes_s = 5.33 * tera,
            .memory_bytes = mi300x(192 * giga),
            .memory_bytes_s = mi300x(5.3 * tera),
            .flops_s = {mi300x(81.7 * tera), mi300x(163.4 * tera), mi300x(163.4 * tera), mi300x(653.7 * tera),
                        mi300x(1307.4 * tera), mi300x(1307.4 * tera), mi300x(2614.9 * tera), mi300x(2614.9 * tera), unstated},
            .link_bytes_s = mi300x(896 * giga),
            .tdp_w = mi300x(750),
            .sms = mi300x(304),
            .l2_bytes = rocm.dies(4 * mib, 8)},
    GpuSpec{.key = "rtx-4090",
            .family = "rtx4090",
            .name = "NVIDIA GeForce RTX 4090",
            .reported = "RTX 4090",
            .memory_limit_bytes_s = 1.01 * tera,
            .memory_bytes = ada(24 * giga),
            .memory_bytes_s = ada(1.008 * tera),
            .flops_s = {ada.slow_fp64(82.6 * tera), unstated, ada(82.6 * tera), ada(82.6 * tera), ada(165.2 * tera),
                        ada(165.2 * tera), ada(330.3 * tera), ada(660.6 * tera), unstated},
            .link_bytes_s = ada(0),
            .tdp_w = ada(450),
            .sms = ada(128),
            .l2_bytes = ada(72 * mib)},
    GpuSpec{.key = "l40s",
            .family = "l40s",
            .name = "NVIDIA L40S",
            .reported = "L40S",
            .memory_limit_bytes_s = 0.865 * tera,
            .memory_bytes = l40s(48 * giga),
            .memory_bytes_s = l40s(0.864 * tera),
            .flops_s = {ada.slow_fp64(91.6 * tera), unstated, l40s(91.6 * tera), l40s(183 * tera), l40s(362.05 * tera),
                        l40s(362.05 * tera), l40s(733 * tera), l40s(733 * tera), unstated},
            .link_bytes_s = l40s(0),
            .tdp_w = l40s(350),
            .sms = l40s.rt_cores(142),
            .l2_bytes = ada(96 * mib).doubted("the whitepaper states it of the chip; 48 MB is quoted of this product")},
    GpuSpec{.reported = "H100 NVL", .memory_limit_bytes_s = 3.94 * tera},
    GpuSpec{.reported = "H100", .memory_limit_bytes_s = 3.36 * tera},
    GpuSpec{.reported = "H800", .memory_limit_bytes_s = 3.36 * tera},
    GpuSpec{.reported = "H20", .memory_limit_bytes_s = 4.0 * tera},
    GpuSpec{.reported = "A100 80GB PCIe", .memory_limit_bytes_s = 1.94 * tera},
    GpuSpec{.reported = "A100-PCIE-40GB", .memory_limit_bytes_s = 1.56 * tera},
    GpuSpec{.reported = "A100", .memory_limit_bytes_s = 2.04 * tera},
    GpuSpec{.reported = "A800", .memory_limit_bytes_s = 2.04 * tera},
    GpuSpec{.reported = "A30", .memory_limit_bytes_s = 0.934 * tera},
    GpuSpec{.reported = "A40", .memory_limit_bytes_s = 0.696 * tera},
    GpuSpec{.reported = "A10", .memory_limit_bytes_s = 0.601 * tera},
    GpuSpec{.reported = "L40", .memory_limit_bytes_s = 0.865 * tera},
    GpuSpec{.reported = "L4", .memory_limit_bytes_s = 0.301 * tera},
    GpuSpec{.reported = "RTX 5090", .memory_limit_bytes_s = 1.80 * tera},
    GpuSpec{.reported = "RTX PRO 6000", .memory_limit_bytes_s = 1.80 * tera},
};

}  // namespace aisp::machine
