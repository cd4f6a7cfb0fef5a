// SPDX-License-Identifier: Apache-2.0
// cuSPARSELt, products with a 2:4 sparse matrix, opened at run time: nothing of it is linked, and none of its headers is needed.
// Types and numbers are those of NVIDIA's cuSPARSELt API reference, version 0.8, as far as they are used. A variant that uses it
// says `.needs = {.libraries = {Library::cusparselt}}`.
#pragma once
#include <library_types.h>
#include <aisp/check.hpp>
#include <aisp/front_end.hpp>
#include <aisp/libraries/fastest.hpp>
#include <aisp/library.hpp>
#include <aisp/opened.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace aisp {

namespace cusparselt {

enum class Status : int { success = 0, invalid = 3, not_supported = 10 };  // cusparseStatus_t
enum class Operation : int { plain = 0, transposed = 1 };                  // cusparseOperation_t
enum class Order : int { row_major = 2 };                                  // cusparseOrder_t
enum class Sparsity : int { half = 0 };                                    // cusparseLtSparsity_t
enum class Compute : int { fp32 = 2 };                                     // cusparseComputeType
enum class Attribute : int { algorithm = 0, algorithms = 1 };  // cusparseLtMatmulAlgAttribute_t: CONFIG_ID, CONFIG_MAX_ID
// Each of the library's opaque structs; they have had 512 and 11024 bytes.
struct alignas(16) Opaque {
  std::byte bytes[16384];
};

using Property = Status(libraryPropertyType, int*);
using Init = Status(Opaque* handle);
using Destroy = Status(const Opaque*);
using DenseInit = Status(const Opaque* handle, Opaque* matrix, std::int64_t rows, std::int64_t columns, std::int64_t pitch,
                         std::uint32_t alignment, cudaDataType, Order);
using StructuredInit = Status(const Opaque* handle, Opaque* matrix, std::int64_t rows, std::int64_t columns, std::int64_t pitch,
                              std::uint32_t alignment, cudaDataType, Order, Sparsity);
using MatmulInit = Status(const Opaque* handle, Opaque* matmul, Operation, Operation, const Opaque* a, const Opaque* b,
                          const Opaque* c, const Opaque* d, Compute);
using SelectionInit = Status(const Opaque* handle, Opaque* selection, const Opaque* matmul, int algorithm);
using SetAttribute = Status(const Opaque* handle, Opaque* selection, Attribute, const void* value, std::size_t bytes);
using GetAttribute = Status(const Opaque* handle, const Opaque* selection, Attribute, void* value, std::size_t bytes);
using PlanInit = Status(const Opaque* handle, Opaque* plan, const Opaque* matmul, const Opaque* selection);
using Workspace = Status(const Opaque* handle, const Opaque* plan, std::size_t* bytes);
using CompressedSize = Status(const Opaque* handle, const Opaque* plan, std::size_t* bytes, std::size_t* buffer_bytes);
using Compress = Status(const Opaque* handle, const Opaque* plan, const void* dense, void* compressed, void* buffer,
                        cudaStream_t);
// cusparseLtMatmul, and cusparseLtMatmulSearch, which changes the plan.
using Matmul = Status(const Opaque* handle, Opaque* plan, const void* alpha, const void* a, const void* b, const void* beta,
                      const void* c, void* d, void* workspace, cudaStream_t* streams, std::int32_t count);

}  // namespace cusparselt

inline void check(cusparselt::Status status, const std::source_location& where = std::source_location::current()) {
  if (status != cusparselt::Status::success)
    throw std::runtime_error{"cuSPARSELt status " + std::to_string(static_cast<int>(status)) + " at line " +
                             std::to_string(where.line()) + " of " + where.file_name()};
}

class CusparseLt {
 public:
  static constexpr Library library = Library::cusparselt;

  CusparseLt() {
    constexpr int least_minor = 8;
    int major = 0, minor = 0;
    const auto property = function<cusparselt::Property>("cusparseLtGetProperty");
    check(property(MAJOR_VERSION, &major));
    check(property(MINOR_VERSION, &minor));
    if (major != 0 || minor < least_minor)
      throw Unsupported{"cuSPARSELt is version " + std::to_string(major) + "." + std::to_string(minor) + ", 0.8 is needed"};
    check(function<cusparselt::Init>("cusparseLtInit")(handle_.get()));
  }
  ~CusparseLt() { destroy_(handle_.get()); }
  CusparseLt(const CusparseLt&) = delete;
  CusparseLt& operator=(const CusparseLt&) = delete;

  const cusparselt::Opaque* handle() const { return handle_.get(); }

  // The library's own calls, by name: function<cusparselt::Init>("cusparseLtInit").
  template <class F>
  static F* function(const char* name) {
    return SharedLibrary::open(Library::cusparselt).function<F>(name);
  }

 private:
  std::unique_ptr<cusparselt::Opaque> handle_ = std::make_unique<cusparselt::Opaque>();
  cusparselt::Destroy* destroy_ = function<cusparselt::Destroy>("cusparseLtDestroy");
};

}  // namespace aisp

namespace aisp::inline AISP_FRONT_END {

// Row-major bf16 C[m][n] = A B: A[m][k] with two zeros at least in every four neighbours, B stored as [n][k].
struct SparseMatmulProblem {
  std::size_t m = 0, n = 0, k = 0;
};

// That product by the fastest of the library's algorithms. choose() compresses A and times them; call it in `prepare`: A must not
// change afterwards, C is overwritten. run() only launches.
class SparseMatmulPlan {
 public:
  static constexpr Library library = Library::cusparselt;

  SparseMatmulPlan(const CusparseLt& lt, const SparseMatmulProblem& problem) : lt_{lt} {
    using cusparselt::Order;
    constexpr std::uint32_t alignment = 16;
    const auto dense = CusparseLt::function<cusparselt::DenseInit>("cusparseLtDenseDescriptorInit");
    const auto structured = CusparseLt::function<cusparselt::StructuredInit>("cusparseLtStructuredDescriptorInit");
    const auto matmul = CusparseLt::function<cusparselt::MatmulInit>("cusparseLtMatmulDescriptorInit");
    const auto number = [](std::size_t size) { return static_cast<std::int64_t>(size); };
    const auto possible = [](cusparselt::Status status) {
      if (status == cusparselt::Status::invalid || status == cusparselt::Status::not_supported)
        throw Unsupported{"cuSPARSELt has no product of these extents"};
      check(status);
    };
    const std::int64_t m = number(problem.m), n = number(problem.n), k = number(problem.k);
    possible(structured(lt_.handle(), &all_->a, m, k, k, alignment, CUDA_R_16BF, Order::row_major, cusparselt::Sparsity::half));
    possible(dense(lt_.handle(), &all_->b, n, k, k, alignment, CUDA_R_16BF, Order::row_major));
    possible(dense(lt_.handle(), &all_->c, m, n, n, alignment, CUDA_R_16BF, Order::row_major));
    possible(matmul(lt_.handle(), &all_->matmul, cusparselt::Operation::plain, cusparselt::Operation::transposed, &all_->a,
                    &all_->b, &all_->c, &all_->c, cusparselt::Compute::fp32));
  }
  ~SparseMatmulPlan() {
    chosen_.reset();
    cudaFree(compressed_);
    const auto destroy = CusparseLt::function<cusparselt::Destroy>("cusparseLtMatDescriptorDestroy");
    for (const cusparselt::Opaque* matrix : {&all_->a, &all_->b, &all_->c}) destroy(matrix);
  }
  SparseMatmulPlan(const SparseMatmulPlan&) = delete;
  SparseMatmulPlan& operator=(const SparseMatmulPlan&) = delete;

  // The candidates include the result of the library's own search, which also tries to split K. The first choice is kept.
  void choose(cudaStream_t stream, const void* a, const void* b, void* c) {
    if (chosen_) return compress(stream, *chosen_, a);
    std::vector<std::unique_ptr<Algorithm>> algorithms;
    const auto add = [&](int number, bool search) {
      try {
        auto algorithm = std::make_unique<Algorithm>(lt_, all_->matmul, number);
        if (search) algorithm->search(stream, compressed_, b, c);
        algorithms.push_back(std::move(algorithm));
      } catch (const CudaError&) {
        throw;
      } catch (const std::exception&) {  // the library does not have it for this product
        cudaGetLastError();
      }
    };
    add(0, false);
    if (algorithms.empty()) throw Unsupported{"cuSPARSELt has no algorithm for this product"};
    compress(stream, *algorithms.front(), a);
    const int count = algorithms.front()->count();
    for (int number = 1; number < count; ++number) add(number, false);
    add(0, true);
    const auto best = fastest(stream, algorithms.size(), [&](std::size_t i) { algorithms[i]->run(stream, compressed_, b, c); });
    if (!best) throw Unsupported{"cuSPARSELt refuses all its algorithms for this product"};
    check(cudaStreamSynchronize(stream));
    chosen_ = std::move(algorithms[*best]);
  }
  void run(cudaStream_t stream, const void* b, void* c) const {
    if (!chosen_) throw std::logic_error{"SparseMatmulPlan::run before choose"};
    chosen_->run(stream, compressed_, b, c);
  }

 private:
  struct Descriptors {
    cusparselt::Opaque a, b, c, matmul;
  };

  // One algorithm with a plan and a workspace of its own.
  class Algorithm {
   public:
    Algorithm(const CusparseLt& lt, const cusparselt::Opaque& matmul, int number) : lt_{lt} {
      const auto select = CusparseLt::function<cusparselt::SelectionInit>("cusparseLtMatmulAlgSelectionInit");
      const auto set = CusparseLt::function<cusparselt::SetAttribute>("cusparseLtMatmulAlgSetAttribute");
      const auto plan = CusparseLt::function<cusparselt::PlanInit>("cusparseLtMatmulPlanInit");
      check(select(lt_.handle(), &all_->selection, &matmul, 0));
      check(set(lt_.handle(), &all_->selection, cusparselt::Attribute::algorithm, &number, sizeof number));
      check(plan(lt_.handle(), &all_->plan, &matmul, &all_->selection));
      try {
        get_workspace();
      } catch (...) {
        release();
        throw;
      }
    }
    ~Algorithm() { release(); }
    Algorithm(const Algorithm&) = delete;
    Algorithm& operator=(const Algorithm&) = delete;

    // Returns how many algorithms the library has.
    int count() const {
      int count = 0;
      const auto get = CusparseLt::function<cusparselt::GetAttribute>("cusparseLtMatmulAlgGetAttribute");
      check(get(lt_.handle(), &all_->selection, cusparselt::Attribute::algorithms, &count, sizeof count));
      return count;
    }
    const cusparselt::Opaque* plan() const { return &all_->plan; }

    void search(cudaStream_t stream, const void* a, const void* b, void* c) {
      check(call(CusparseLt::function<cusparselt::Matmul>("cusparseLtMatmulSearch"), stream, a, b, c));
      check(cudaStreamSynchronize(stream));
      get_workspace();
    }
    void run(cudaStream_t stream, const void* a, const void* b, void* c) const { check(call(multiply_, stream, a, b, c)); }

   private:
    struct Both {
      cusparselt::Opaque selection, plan;
    };

    cusparselt::Status call(cusparselt::Matmul* function, cudaStream_t stream, const void* a, const void* b, void* c) const {
      const float one = 1, zero = 0;
      return function(lt_.handle(), &all_->plan, &one, a, b, &zero, c, c, workspace_, &stream, 1);
    }
    void get_workspace() {
      std::size_t bytes = 0;
      check(CusparseLt::function<cusparselt::Workspace>("cusparseLtMatmulGetWorkspace")(lt_.handle(), &all_->plan, &bytes));
      cudaFree(std::exchange(workspace_, nullptr));
      if (bytes > 0) check(cudaMalloc(&workspace_, bytes));
    }
    void release() {
      CusparseLt::function<cusparselt::Destroy>("cusparseLtMatmulPlanDestroy")(&all_->plan);
      cudaFree(workspace_);
    }

    const CusparseLt& lt_;
    std::unique_ptr<Both> all_ = std::make_unique<Both>();
    void* workspace_ = nullptr;
    cusparselt::Matmul* multiply_ = CusparseLt::function<cusparselt::Matmul>("cusparseLtMatmul");
  };

  // The compressed matrix is the same for all algorithms.
  void compress(cudaStream_t stream, const Algorithm& algorithm, const void* a) {
    std::size_t bytes = 0, buffer_bytes = 0;
    check(CusparseLt::function<cusparselt::CompressedSize>("cusparseLtSpMMACompressedSize")(lt_.handle(), algorithm.plan(),
                                                                                            &bytes, &buffer_bytes));
    cudaFree(std::exchange(compressed_, nullptr));
    check(cudaMalloc(&compressed_, bytes));
    void* buffer = nullptr;
    if (buffer_bytes > 0) check(cudaMalloc(&buffer, buffer_bytes));
    const std::unique_ptr<void, cudaError_t (*)(void*)> owned{buffer, cudaFree};
    check(CusparseLt::function<cusparselt::Compress>("cusparseLtSpMMACompress")(lt_.handle(), algorithm.plan(), a, compressed_,
                                                                                buffer, stream));
    check(cudaStreamSynchronize(stream));
  }

  const CusparseLt& lt_;
  std::unique_ptr<Descriptors> all_ = std::make_unique<Descriptors>();
  void* compressed_ = nullptr;
  std::unique_ptr<Algorithm> chosen_;
};

// clang-format 14 cannot settle on the comment of an inline namespace.
// clang-format off
}  // namespace aisp::inline AISP_FRONT_END
// clang-format on
