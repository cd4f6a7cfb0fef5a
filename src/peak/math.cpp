// SPDX-License-Identifier: Apache-2.0
// Arithmetic: square products of cuBLASLt and cuBLAS, and own loops where one beats a library.
#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/cublaslt.hpp>

#include <array>
#include <memory>

#include "peak/kernels.hpp"
#include "peak/parts.hpp"

namespace aisp::peak {
namespace {

using machine::NumberType;

constexpr std::array sizes = {8192, 4096};
constexpr int most = sizes.front();

struct ProductKind {
  const char* id;
  NumberType element;
  cudaDataType_t operands, result;
  cublasComputeType_t compute;
  bool only_transposed;  // the library takes B stored as [n][k] alone
};

constexpr std::array kinds = {
    ProductKind{"tf32", NumberType::fp32, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, false},
    ProductKind{"bf16", NumberType::bf16, CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, false},
    ProductKind{"fp16", NumberType::fp16, CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F, false},
    ProductKind{"fp8", NumberType::fp8, CUDA_R_8F_E4M3, CUDA_R_16BF, CUBLAS_COMPUTE_32F, true},
    ProductKind{"int8", NumberType::int8, CUDA_R_8I, CUDA_R_8I, CUBLAS_COMPUTE_32I, true},
};
constexpr ProductKind fp32{"fp32", NumberType::fp32, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, false};

double operations(int n) { return 2.0 * n * n * n; }

std::string title(const char* library, int n, bool transposed) {
  return std::string{library} + " " + std::to_string(n) + "^3" + (transposed ? ", B transposed" : "");
}

// Operands of one type, large enough for the largest product.
struct Operands {
  Operands(NumberType element, std::size_t result_bytes, cudaStream_t stream)
      : a{bytes_of(element)}, b{bytes_of(element)}, c{count * result_bytes} {
    launch_fill(a.data(), element, count, 1, stream);
    launch_fill(b.data(), element, count, 2, stream);
  }
  static std::size_t bytes_of(NumberType element) { return count * static_cast<std::size_t>(machine::traits_of(element).bytes); }
  static constexpr std::size_t count = std::size_t{most} * most;
  base::DeviceMemory a, b, c;
};

using Loads = std::vector<std::function<Load()>>;

// In the quick variant the largest product is tuned on tensor cores; on the FMA units, many times as slow, there is no time to
// try 32 algorithms. Other sizes have the heuristic's first.
bool is_tuned(const Bench& bench, const ProductKind& kind, int n) { return bench.tunes() || (n == most && &kind != &fp32); }

// For each size and each layout of B, the fastest of the algorithms that cuBLASLt's heuristic proposes, or its first where there
// is no time to look. Sums of FP8 products stay in the tensor cores: that is their full rate.
Loads products(Bench& bench, const CublasLt& library, const Operands& operands, const ProductKind& kind) {
  Loads loads;
  for (const int n : sizes)
    for (const bool transposed : {true, false}) {
      if (kind.only_transposed && !transposed) continue;
      loads.emplace_back([&bench, &library, &operands, &kind, n, transposed] {
        const auto side = static_cast<std::size_t>(n);
        const MatmulProblem problem{.m = side,
                                    .n = side,
                                    .k = side,
                                    .operands = kind.operands,
                                    .result = kind.result,
                                    .compute = kind.compute,
                                    .b_is_transposed = transposed,
                                    .fast_accumulation = kind.element == NumberType::fp8};
        const auto plan = std::make_shared<MatmulPlan>(library, problem);
        const bool tuned = is_tuned(bench, kind, n);
        if (tuned) plan->tune(bench.stream(), operands.a.data(), operands.b.data(), operands.c.data());
        return Load{title("cuBLASLt", n, transposed) + (tuned ? ", tuned" : ""), operations(n),
                    [plan, &operands](Launch& launch) {
                      plan->run(launch.stream, operands.a.data(), operands.b.data(), operands.c.data());
                    },
                    tuned};
      });
    }
  return loads;
}

Figure measure_product(Bench& bench, const ProductKind& kind, Loads own = {}) {
  if (kind.element == NumberType::fp8 && bench.gpu().sm < 89) throw Unsupported{"this GPU has no FP8"};
  const CublasLt library;
  const std::size_t result_bytes = kind.result == CUDA_R_32F ? 4 : kind.result == CUDA_R_8I ? 1 : 2;
  const Operands operands{kind.element, result_bytes, bench.stream()};
  Loads loads = products(bench, library, operands, kind);
  loads.insert(loads.end(), own.begin(), own.end());
  return bench.best_rate(std::move(loads));
}

Figure measure_fp64_tensor(Bench& bench) {
  Cublas library;
  const Operands operands{NumberType::fp64, sizeof(double), bench.stream()};
  const auto gemm = Cublas::function<decltype(cublasDgemm_v2)>("cublasDgemm_v2");
  Loads loads;
  for (const int n : sizes)
    loads.emplace_back([&, n] {
      return Load{title("cuBLAS", n, false), operations(n), [&, n](Launch& launch) {
                    const double one = 1, zero = 0;
                    library.use(launch.stream);
                    check(gemm(library.handle(), CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, operands.b.as<double>(), n,
                               operands.a.as<double>(), n, &zero, operands.c.as<double>(), n));
                  }};
    });
  return bench.best_rate(std::move(loads));
}

// About a millisecond on an H200, whose FP64 units are half as many.
Load fma_loop(Bench& bench, void* sink, bool fp64) {
  const int sms = bench.gpu().sm_count, rounds = fp64 ? 256 : 512;
  const auto launch = fp64 ? launch_fma_fp64 : launch_fma_fp32;
  const double amount = launch(sms, rounds, sink, bench.stream());
  return {"FMA loop", amount, [=](Launch& l) { launch(sms, rounds, sink, l.stream); }};
}

}  // namespace

void measure_math(Bench& bench, const Teller& teller) {
  const base::DeviceMemory sink{sizeof(double)};
  teller.figure("fp64", [&] { return bench.best_rate({[&] { return fma_loop(bench, sink.data(), true); }}); });
  teller.figure("fp64_tensor", [&] { return measure_fp64_tensor(bench); });
  teller.figure("fp32", [&] {
    const std::function<Load()> loop = [&] { return fma_loop(bench, sink.data(), false); };
    try {
      return measure_product(bench, fp32, {loop});
    } catch (const Unsupported&) {  // without the library the loop still counts
      return bench.best_rate({loop});
    }
  });
  for (const ProductKind& kind : kinds) teller.figure(kind.id, [&] { return measure_product(bench, kind); });
}

}  // namespace aisp::peak
