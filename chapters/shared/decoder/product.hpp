// SPDX-License-Identifier: Apache-2.0
// The products of a decoder: y[rows][outputs] = x[rows][depth] W[outputs][depth]^T. Every way of computing one that is ever taken
// gives the bits of skinny_kernel: of cuBLASLt's algorithms those are candidates whose results equal its in every bit.
#pragma once
#include <aisp/device_attribute.hpp>
#include <aisp/launch.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/tensor_map.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "product.cuh"

namespace aisp::decoder {

constexpr int most_columns = 64;  // rows of x that skinny_kernel takes at once

// All layers' weights of one kind.
struct Matrices {
  const bf16* data;
  int outputs, depth, layers;
};

// A launch of skinny_kernel with so many warps a block, on so many SMs; the ring takes what shared memory there is.
template <class Out>
void multiply_skinny(cudaStream_t stream, const Matrices& weights, int layer, const bf16* x, Out* y, int rows, int warps,
                     bool overlapping, int sms) {
  // Static memory, and what lies before the ring's boundary of 1 KiB, have 2 KiB.
  const int ring_bytes = std::min(208 << 10, device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - (2 << 10));
  const auto launch = [&]<int columns>(int first, int count) {
    const int stages = std::min(most_stages, ring_bytes / stage_bytes(warps, columns)),
              tiles = (weights.outputs + warps * unit - 1) / (warps * unit);
    const auto depth = static_cast<std::size_t>(weights.depth);
    const CUtensorMap weight_map = matrix_map_bf16(weights.data, static_cast<std::size_t>(weights.layers * weights.outputs),
                                                   depth, static_cast<unsigned>(warps * unit), box_depth);
    const CUtensorMap x_map =
        matrix_map_bf16(x + static_cast<std::size_t>(first) * depth, static_cast<std::size_t>(count), depth, columns, box_depth);
    const SkinnyProduct product{y + static_cast<std::size_t>(first) * static_cast<std::size_t>(weights.outputs),
                                layer * weights.outputs, weights.outputs, weights.depth, count};
    launch_kernel(stream, skinny_kernel<columns, Out>,
                  Grid{.blocks = static_cast<unsigned>(std::min(tiles, sms)),
                       .threads = static_cast<unsigned>(32 * (warps + 1)),
                       .shared_bytes = static_cast<std::size_t>(stages) * static_cast<std::size_t>(stage_bytes(warps, columns)),
                       .overlapping = overlapping},
                  weight_map, x_map, product, stages);
  };
  for (int first = 0; first < rows; first += most_columns) {
    const int count = std::min(rows - first, most_columns);
    if (count <= 8) launch.template operator()<8>(first, count);
    else if (count <= 16) launch.template operator()<16>(first, count);
    else if (count <= 32) launch.template operator()<32>(first, count);
    else launch.template operator()<64>(first, count);
  }
}

// Counts elements whose bits differ.
template <class Word>
__global__ void count_different_kernel(const Word* a, const Word* b, std::size_t count, unsigned* different) {
  unsigned own = 0;
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += std::size_t{gridDim.x} * blockDim.x)
    own += a[i] != b[i];
  if (own > 0) atomicAdd(different, own);
}
// About normal values, for tuning.
static __global__ void fill_kernel(bf16* to, std::size_t count) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += std::size_t{gridDim.x} * blockDim.x) {
    const std::uint64_t bits = random_bits(0x5EED, i);
    const int sum =
        static_cast<int>(bits & 0xFFFF) + static_cast<int>(bits >> 16 & 0xFFFF) + static_cast<int>(bits >> 32 & 0xFFFF);
    to[i] = __float2bfloat16_rn(static_cast<float>(sum - 98302) * 3e-5f);
  }
}

// One of a decoder's matrices in all its layers, and how it is multiplied by so many rows.
template <class Out>
class Product {
 public:
  // `sms`: on which its streams run; 0: on all.
  Product(int outputs, int depth, int layers, int sms = 0) : outputs_{outputs}, depth_{depth}, layers_{layers}, sms_{sms} {}

  // Chooses the fastest way for this number of rows, once in a process: belongs into `prepare`. Other numbers take the way of the
  // next one above; those above all of them are multiplied by skinny_kernel.
  void tune(const CublasLt& lt, cudaStream_t stream, const bf16* weights, int rows) {
    static std::map<std::array<int, 6>, Choice> chosen;  // by the GPU, its SMs and the product
    int device = 0;
    check(cudaGetDevice(&device));
    const auto [entry, is_new] = chosen.try_emplace({device, sms_, outputs_, depth_, layers_, rows});
    if (is_new) entry->second = choose(lt, stream, weights, rows);
    choices_[rows] = entry->second;
    lt_ = &lt;
  }
  void run(cudaStream_t stream, const bf16* weights, int layer, const bf16* x, void* y, int rows, bool overlapping) const {
    const auto found = choices_.lower_bound(rows);
    run(stream, found != choices_.end() ? found->second : Choice{default_warps(), {}}, weights, layer, x, y, rows, overlapping);
  }
  std::size_t elements() const { return static_cast<std::size_t>(outputs_) * depth_; }
  int outputs() const { return outputs_; }
  // Whether the library multiplies this number of rows, for metrics and tests.
  bool by_library(int rows) const { return choices_.contains(rows) && choices_.at(rows).warps == 0; }

 private:
  struct Choice {
    int warps = 0;  // of skinny_kernel; 0: the library's algorithm
    cublasLtMatmulAlgo_t algorithm{};
  };
  class Memory {
   public:
    explicit Memory(std::size_t bytes) { check(cudaMalloc(&data_, bytes)); }
    ~Memory() { cudaFree(data_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    template <class T>
    T* as() const {
      return static_cast<T*>(data_);
    }

   private:
    void* data_ = nullptr;
  };
  // The library's description of the product with some rows.
  struct Description {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t weights = nullptr, x = nullptr, y = nullptr;
    Description(int outputs, int depth, int rows, int sms) {
      const auto layout = CublasLt::function<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
      constexpr cudaDataType_t out = sizeof(Out) == 4 ? CUDA_R_32F : CUDA_R_16BF;
      check(CublasLt::function<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate")(&operation, CUBLAS_COMPUTE_32F,
                                                                                               CUDA_R_32F));
      const cublasOperation_t transposed = CUBLAS_OP_T;
      check(CublasLt::function<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute")(
          operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
      if (sms > 0)
        check(CublasLt::function<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute")(
            operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sms, sizeof sms));
      check(layout(&weights, CUDA_R_16BF, static_cast<std::uint64_t>(depth), static_cast<std::uint64_t>(outputs), depth));
      check(layout(&x, CUDA_R_16BF, static_cast<std::uint64_t>(depth), static_cast<std::uint64_t>(rows), depth));
      check(layout(&y, out, static_cast<std::uint64_t>(outputs), static_cast<std::uint64_t>(rows), outputs));
    }
    ~Description() {
      const auto destroy = CublasLt::function<decltype(cublasLtMatrixLayoutDestroy)>("cublasLtMatrixLayoutDestroy");
      for (cublasLtMatrixLayout_t each : {weights, x, y}) destroy(each);
      CublasLt::function<decltype(cublasLtMatmulDescDestroy)>("cublasLtMatmulDescDestroy")(operation);
    }
    Description(const Description&) = delete;
    Description& operator=(const Description&) = delete;
  };

  int sms() const { return sms_ > 0 ? sms_ : static_cast<int>(multiprocessors()); }
  // As many warps as leave the fewest units to the SM that has the most; of several the most.
  int default_warps() const {
    const int units = (outputs_ + unit - 1) / unit, sms = this->sms();
    int best = 1, best_cost = units;
    for (int warps = 1; warps <= most_warps; ++warps) {
      const int tiles = (units + warps - 1) / warps, cost = (tiles + sms - 1) / sms * warps;
      if (cost <= best_cost) best = warps, best_cost = cost;
    }
    return best;
  }
  void run(cudaStream_t stream, const Choice& choice, const bf16* weights, int layer, const bf16* x, void* y, int rows,
           bool overlapping) const {
    if (choice.warps > 0) {
      multiply_skinny(stream, {weights, outputs_, depth_, layers_}, layer, x, static_cast<Out*>(y), rows, choice.warps,
                      overlapping, sms());
      return;
    }
    auto& description = descriptions_[rows];
    if (!description) description = std::make_unique<Description>(outputs_, depth_, rows, sms_);
    const float one = 1, zero = 0;
    static const auto matmul = CublasLt::function<decltype(cublasLtMatmul)>("cublasLtMatmul");
    const cublasStatus_t status = matmul(lt_->handle(), description->operation, &one, weights + layer * elements(),
                                         description->weights, x, description->x, &zero, y, description->y, y, description->y,
                                         &choice.algorithm, lt_->workspace(), CublasLt::workspace_bytes, stream);
    // An algorithm may refuse another number of rows than it was chosen for.
    if (status != CUBLAS_STATUS_SUCCESS && !choices_.contains(rows)) {
      multiply_skinny(stream, {weights, outputs_, depth_, layers_}, layer, x, static_cast<Out*>(y), rows, default_warps(),
                      overlapping, sms());
      return;
    }
    check(status);
  }

  Choice choose(const CublasLt& lt, cudaStream_t stream, const bf16* weights, int rows) {
    lt_ = &lt;
    choices_[rows] = {default_warps(), {}};  // what is refused now is no candidate
    const std::size_t results = static_cast<std::size_t>(rows) * outputs_, inputs = static_cast<std::size_t>(rows) * depth_;
    const Memory x{inputs * sizeof(bf16)}, y{results * sizeof(Out)}, other{results * sizeof(Out)}, different{sizeof(unsigned)};
    fill_kernel<<<1024, 256, 0, stream>>>(x.template as<bf16>(), inputs);
    multiply_skinny(stream, {weights, outputs_, depth_, layers_}, 0, x.template as<bf16>(), y.template as<Out>(), rows,
                    default_warps(), false, sms());
    std::vector<Choice> candidates;
    if (rows <= most_columns)
      for (int warps = 1; warps <= most_warps; ++warps) candidates.push_back({warps, {}});
    else candidates.push_back({default_warps(), {}});
    // Few rows are multiplied by our own kernel alone: it begins while the one before it ends, which no timing of a product
    // shows.
    constexpr int own_rows = 16;
    for (const Choice& candidate : rows > own_rows ? proposals(rows) : std::vector<Choice>{}) {
      check(cudaMemsetAsync(other.template as<void>(), 0xff, results * sizeof(Out), stream));
      check(cudaMemsetAsync(different.template as<void>(), 0, sizeof(unsigned), stream));
      try {
        run(stream, candidate, weights, 0, x.template as<bf16>(), other.template as<void>(), rows, false);
      } catch (const CudaError&) {
        throw;
      } catch (const std::exception&) {  // the library refuses what it has proposed
        cudaGetLastError();
        continue;
      }
      using Word = std::conditional_t<sizeof(Out) == 4, unsigned, unsigned short>;
      count_different_kernel<<<1024, 256, 0, stream>>>(y.template as<Word>(), other.template as<Word>(), results,
                                                       different.template as<unsigned>());
      unsigned count = 0;
      check(cudaMemcpyAsync(&count, different.template as<void>(), sizeof count, cudaMemcpyDeviceToHost, stream));
      check(cudaStreamSynchronize(stream));
      if (count == 0) candidates.push_back(candidate);
    }
    int turn = 0;  // of the layers, so that the matrix is in no cache
    const auto best = fastest(stream, candidates.size(), [&](std::size_t i) {
      turn = (turn + 1) % layers_;
      run(stream, candidates[i], weights, turn, x.template as<bf16>(), other.template as<void>(), rows, false);
    });
    check(cudaStreamSynchronize(stream));
    return candidates[best.value_or(0)];
  }
  std::vector<Choice> proposals(int rows) const {
    constexpr int most = 32;
    const Description of{outputs_, depth_, rows, sms_};
    cublasLtMatmulPreference_t preference = nullptr;
    check(CublasLt::function<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate")(&preference));
    const std::size_t bytes = CublasLt::workspace_bytes;
    const auto limit = CublasLt::function<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute");
    check(limit(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    const std::uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;  // sums in parts would have other bits
    check(limit(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none));
    std::array<cublasLtMatmulHeuristicResult_t, most> found{};
    int count = 0;
    const auto ask = CublasLt::function<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic");
    if (ask(lt_->handle(), of.operation, of.weights, of.x, of.y, of.y, preference, most, found.data(), &count) !=
        CUBLAS_STATUS_SUCCESS)
      count = 0;
    CublasLt::function<decltype(cublasLtMatmulPreferenceDestroy)>("cublasLtMatmulPreferenceDestroy")(preference);
    std::vector<Choice> proposed;
    for (int i = 0; i < count; ++i) proposed.push_back({0, found[static_cast<std::size_t>(i)].algo});
    return proposed;
  }

  int outputs_, depth_, layers_, sms_;
  const CublasLt* lt_ = nullptr;
  std::map<int, Choice> choices_;
  mutable std::map<int, std::unique_ptr<Description>> descriptions_;
};

}  // namespace aisp::decoder
