// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace aisp {

// Libraries, all opened at run time; if one is absent, the variants that need it are skipped. CUTLASS is libaisp_cutlass.so,
// which the build makes.
enum class Library : std::uint8_t {
  none,
  cublas,
  cublaslt,
  cudnn,
  nccl,
  nvrtc,
  nvjitlink,
  cufft,
  cusparse,
  cusparselt,
  cusolver,
  cufile,
  cupti,
  nvml,
  cutlass
};

constexpr std::string_view name_of(Library library) {
  constexpr std::string_view names[] = {"none",     "cuBLAS",     "cuBLASLt", "cuDNN",  "NCCL",  "NVRTC", "nvJitLink", "cuFFT",
                                        "cuSPARSE", "cuSPARSELt", "cuSOLVER", "cuFile", "CUPTI", "NVML",  "CUTLASS"};
  return names[static_cast<std::size_t>(library)];
}

// The number of processes that a pair runs as, each with a GPU of its own.
struct Ranks {
  int least = 1, most = 1;
};
inline constexpr int most_ranks = 1024;

// Requirements of a pair or variant. Unmet needs skip it with a plain reason; they never fail it.
struct Needs {
  int min_sm = 80;  // compute capability times ten
  int max_sm = 0;   // last family that runs this code (architecture-specific code); 0: no limit
  int gpus = 1;
  Ranks ranks{};             // of a pair: it runs as several processes of one GPU each, as many as there is room for
  bool peer_access = false;  // between all of them
  bool dsmem = false;        // distributed shared memory in clusters
  bool tcgen05 = false;
  std::size_t device_memory = 0;  // bytes per GPU that even workloads scaled down to a small GPU need
  std::size_t host_memory = 0;    // bytes
  int cpus = 0;
  int driver = 0;  // CUDA version the driver must support, as 13000 for 13.0
  Library libraries[4]{};
  cudaDeviceAttr attributes[4]{};  // device attributes that must not be zero
};

}  // namespace aisp
