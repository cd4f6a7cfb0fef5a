// SPDX-License-Identifier: Apache-2.0
// cuSPARSE, opened at run time: nothing of it is linked, and none of its headers is needed. Types and numbers are those of
// NVIDIA's cuSPARSE API reference, version 12, as far as they are used. A variant that uses it says `.needs = {.libraries =
// {Library::cusparse}}`.
#pragma once
#include <library_types.h>
#include <aisp/check.hpp>
#include <aisp/front_end.hpp>
#include <aisp/libraries/fastest.hpp>
#include <aisp/library.hpp>
#include <aisp/opened.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace aisp {

namespace cusparse {

enum class Status : int { success = 0 };                                        // cusparseStatus_t
enum class Operation : int { plain = 0 };                                       // cusparseOperation_t
enum class Index : int { int32 = 2 };                                           // cusparseIndexType_t
enum class Base : int { zero = 0 };                                             // cusparseIndexBase_t
enum class Order : int { row_major = 2 };                                       // cusparseOrder_t
enum class SpmmAlgorithm : int { csr_1 = 4, csr_2 = 6 };                        // cusparseSpMMAlg_t
enum class SpmvAlgorithm : int { coo_1 = 1, csr_1 = 2, csr_2 = 3, coo_2 = 4 };  // cusparseSpMVAlg_t
using Handle = void*;
using Sparse = void*;
using Dense = void*;

using Create = Status(Handle*);
using Destroy = Status(void*);  // also of matrices
using SetStream = Status(Handle, cudaStream_t);
using CreateCsr = Status(Sparse*, std::int64_t rows, std::int64_t columns, std::int64_t entries, const void* offsets,
                         const void* indices, const void* values, Index of_offsets, Index of_indices, Base, cudaDataType);
using CreateCoo = Status(Sparse*, std::int64_t rows, std::int64_t columns, std::int64_t entries, const void* row_indices,
                         const void* indices, const void* values, Index, Base, cudaDataType);
using CreateVector = Status(Dense*, std::int64_t size, const void* values, cudaDataType);
using CreateDense = Status(Dense*, std::int64_t rows, std::int64_t columns, std::int64_t pitch, const void* values, cudaDataType,
                           Order);
// cusparseSpMM with a workspace; cusparseSpMM_bufferSize with where its size goes.
template <class Last>
using Spmm = Status(Handle, Operation, Operation, const void* alpha, Sparse, Dense, const void* beta, Dense, cudaDataType,
                    SpmmAlgorithm, Last);
// cusparseSpMV and cusparseSpMV_preprocess, and cusparseSpMV_bufferSize, in the same way.
template <class Last>
using Spmv = Status(Handle, Operation, const void* alpha, Sparse, Dense, const void* beta, Dense, cudaDataType, SpmvAlgorithm,
                    Last);

}  // namespace cusparse

inline void check(cusparse::Status status, const std::source_location& where = std::source_location::current()) {
  if (status != cusparse::Status::success)
    throw std::runtime_error{"cuSPARSE status " + std::to_string(static_cast<int>(status)) + " at line " +
                             std::to_string(where.line()) + " of " + where.file_name()};
}

class Cusparse {
 public:
  static constexpr Library library = Library::cusparse;

  Cusparse() { check(function<cusparse::Create>("cusparseCreate")(&handle_)); }
  ~Cusparse() { destroy_(handle_); }
  Cusparse(const Cusparse&) = delete;
  Cusparse& operator=(const Cusparse&) = delete;

  cusparse::Handle handle() const { return handle_; }
  void use(cudaStream_t stream) const { check(set_stream_(handle_, stream)); }

  // The library's own calls, by name: function<cusparse::Create>("cusparseCreate").
  template <class F>
  static F* function(const char* name) {
    return SharedLibrary::open(Library::cusparse).function<F>(name);
  }

 private:
  cusparse::Handle handle_ = nullptr;
  cusparse::Destroy* destroy_ = function<cusparse::Destroy>("cusparseDestroy");
  cusparse::SetStream* set_stream_ = function<cusparse::SetStream>("cusparseSetStream");
};

}  // namespace aisp

namespace aisp::inline AISP_FRONT_END {

// Row-major C[rows][width] = A B in fp32: A[rows][columns] in compressed rows with 32-bit indices, B[columns][width] row-major.
struct SpmmProblem {
  std::int64_t rows = 0, columns = 0, entries = 0, width = 0;
  const int* offsets = nullptr;  // rows + 1
  const int* indices = nullptr;  // of columns
  const float* values = nullptr;
  const float* b = nullptr;
  float* c = nullptr;
};

// That product by the fastest of the library's algorithms for compressed rows. choose() times them; call it in `prepare`: the
// library's analysis of the matrix holds until the matrix changes. run() only launches.
class SpmmPlan {
 public:
  static constexpr Library library = Library::cusparse;

  SpmmPlan(const Cusparse& sparse, const SpmmProblem& problem) : sparse_{sparse}, problem_{problem} {}

  void choose(cudaStream_t stream) {
    chosen_.reset();
    sparse_.use(stream);
    std::vector<std::unique_ptr<Product>> products;
    using Algorithm = cusparse::SpmmAlgorithm;
    // Without csr_3, and without cusparseSpMM_preprocess for the others: counting the edges of rows, cuSPARSE 12.6.3 writes in
    // front of the buffer that it is given, and for matrices of a few hundred rows further away (compute-sanitizer, memcheck).
    for (const Algorithm algorithm : {Algorithm::csr_1, Algorithm::csr_2}) try {
        products.push_back(std::make_unique<Product>(sparse_, problem_, algorithm));
      } catch (const CudaError&) {
        throw;
      } catch (const std::exception&) {  // the library has it for other layouts
      }
    const auto best = fastest(stream, products.size(), [&](std::size_t i) { products[i]->run(); });
    if (!best) throw Unsupported{"cuSPARSE has no algorithm for this product"};
    check(cudaStreamSynchronize(stream));
    chosen_ = std::move(products[*best]);
  }
  void run(cudaStream_t stream) const {
    if (!chosen_) throw std::logic_error{"SpmmPlan::run before choose"};
    sparse_.use(stream);
    chosen_->run();
  }

 private:
  // One algorithm with descriptors and memory of its own, to which its preparation is tied.
  class Product {
   public:
    Product(const Cusparse& sparse, const SpmmProblem& p, cusparse::SpmmAlgorithm algorithm)
        : sparse_{sparse}, algorithm_{algorithm} {
      using cusparse::Index, cusparse::Order;
      const auto csr = Cusparse::function<cusparse::CreateCsr>("cusparseCreateConstCsr");
      const auto dense = Cusparse::function<cusparse::CreateDense>("cusparseCreateDnMat");
      const auto const_dense = Cusparse::function<cusparse::CreateDense>("cusparseCreateConstDnMat");
      const auto size = Cusparse::function<cusparse::Spmm<std::size_t*>>("cusparseSpMM_bufferSize");
      try {
        check(csr(&a_, p.rows, p.columns, p.entries, p.offsets, p.indices, p.values, Index::int32, Index::int32,
                  cusparse::Base::zero, CUDA_R_32F));
        check(const_dense(&b_, p.columns, p.width, p.width, p.b, CUDA_R_32F, Order::row_major));
        check(dense(&c_, p.rows, p.width, p.width, p.c, CUDA_R_32F, Order::row_major));
        std::size_t bytes = 0;
        check(call(size, &bytes));
        if (bytes > 0) check(cudaMalloc(&buffer_, bytes));
      } catch (...) {
        release();
        throw;
      }
    }
    ~Product() { release(); }
    Product(const Product&) = delete;
    Product& operator=(const Product&) = delete;

    void run() const { check(call(multiply_, buffer_)); }

   private:
    template <class Last>
    cusparse::Status call(cusparse::Spmm<Last>* function, Last last) const {
      using cusparse::Operation;
      const float one = 1, zero = 0;
      return function(sparse_.handle(), Operation::plain, Operation::plain, &one, a_, b_, &zero, c_, CUDA_R_32F, algorithm_,
                      last);
    }
    void release() {
      if (a_ != nullptr) Cusparse::function<cusparse::Destroy>("cusparseDestroySpMat")(a_);
      for (const cusparse::Dense matrix : {b_, c_})
        if (matrix != nullptr) Cusparse::function<cusparse::Destroy>("cusparseDestroyDnMat")(matrix);
      cudaFree(buffer_);
    }

    const Cusparse& sparse_;
    cusparse::SpmmAlgorithm algorithm_;
    cusparse::Sparse a_ = nullptr;
    cusparse::Dense b_ = nullptr, c_ = nullptr;
    void* buffer_ = nullptr;
    cusparse::Spmm<void*>* multiply_ = Cusparse::function<cusparse::Spmm<void*>>("cusparseSpMM");
  };

  const Cusparse& sparse_;
  SpmmProblem problem_;
  std::unique_ptr<Product> chosen_;
};

// y = A x in fp32, A[rows][columns] with 32-bit indices.
struct SpmvProblem {
  std::int64_t rows = 0, columns = 0, entries = 0;
  const int* rows_of = nullptr;  // compressed: rows + 1 offsets; coordinates: the row of each entry, ascending
  const int* indices = nullptr;  // of columns
  const float* values = nullptr;
  const float* x = nullptr;
  float* y = nullptr;
  bool coordinates = false;
};

// That product by the fastest of the library's algorithms for the format. choose() prepares and times them; call it in `prepare`:
// the library's analysis of the matrix holds until the matrix changes. run() only launches.
class SpmvPlan {
 public:
  static constexpr Library library = Library::cusparse;

  SpmvPlan(const Cusparse& sparse, const SpmvProblem& problem) : sparse_{sparse}, problem_{problem} {}

  void choose(cudaStream_t stream) {
    using Algorithm = cusparse::SpmvAlgorithm;
    chosen_.reset();
    sparse_.use(stream);
    std::vector<std::unique_ptr<Product>> products;
    const bool coordinates = problem_.coordinates;
    for (const Algorithm algorithm :
         {coordinates ? Algorithm::coo_1 : Algorithm::csr_1, coordinates ? Algorithm::coo_2 : Algorithm::csr_2})
      products.push_back(std::make_unique<Product>(sparse_, problem_, algorithm, stream));
    const auto best = fastest(stream, products.size(), [&](std::size_t i) { products[i]->run(); });
    if (!best) throw Unsupported{"cuSPARSE has no algorithm for this product"};
    check(cudaStreamSynchronize(stream));
    chosen_ = std::move(products[*best]);
  }
  void run(cudaStream_t stream) const {
    if (!chosen_) throw std::logic_error{"SpmvPlan::run before choose"};
    sparse_.use(stream);
    chosen_->run();
  }
  // Returns the time of cusparseSpMV_preprocess for the chosen algorithm, until its work was done.
  double preprocess_ms() const { return chosen_ ? chosen_->preprocess_ms() : 0; }

 private:
  class Product {
   public:
    Product(const Cusparse& sparse, const SpmvProblem& p, cusparse::SpmvAlgorithm algorithm, cudaStream_t stream)
        : sparse_{sparse}, algorithm_{algorithm} {
      using cusparse::Base, cusparse::Index, cusparse::Spmv;
      const auto csr = Cusparse::function<cusparse::CreateCsr>("cusparseCreateConstCsr");
      const auto coo = Cusparse::function<cusparse::CreateCoo>("cusparseCreateConstCoo");
      const auto vector = Cusparse::function<cusparse::CreateVector>("cusparseCreateDnVec");
      const auto const_vector = Cusparse::function<cusparse::CreateVector>("cusparseCreateConstDnVec");
      try {
        if (p.coordinates)
          check(coo(&a_, p.rows, p.columns, p.entries, p.rows_of, p.indices, p.values, Index::int32, Base::zero, CUDA_R_32F));
        else
          check(csr(&a_, p.rows, p.columns, p.entries, p.rows_of, p.indices, p.values, Index::int32, Index::int32, Base::zero,
                    CUDA_R_32F));
        check(const_vector(&x_, p.columns, p.x, CUDA_R_32F));
        check(vector(&y_, p.rows, p.y, CUDA_R_32F));
        std::size_t bytes = 0;
        check(call(Cusparse::function<Spmv<std::size_t*>>("cusparseSpMV_bufferSize"), &bytes));
        if (bytes > 0) check(cudaMalloc(&buffer_, bytes));
        check(cudaStreamSynchronize(stream));
        const auto begin = std::chrono::steady_clock::now();
        check(call(Cusparse::function<Spmv<void*>>("cusparseSpMV_preprocess"), buffer_));
        check(cudaStreamSynchronize(stream));
        preprocess_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
      } catch (...) {
        release();
        throw;
      }
    }
    ~Product() { release(); }
    Product(const Product&) = delete;
    Product& operator=(const Product&) = delete;

    void run() const { check(call(multiply_, buffer_)); }
    double preprocess_ms() const { return preprocess_ms_; }

   private:
    template <class Last>
    cusparse::Status call(cusparse::Spmv<Last>* function, Last last) const {
      const float one = 1, zero = 0;
      return function(sparse_.handle(), cusparse::Operation::plain, &one, a_, x_, &zero, y_, CUDA_R_32F, algorithm_, last);
    }
    void release() {
      if (a_ != nullptr) Cusparse::function<cusparse::Destroy>("cusparseDestroySpMat")(a_);
      for (const cusparse::Dense vector : {x_, y_})
        if (vector != nullptr) Cusparse::function<cusparse::Destroy>("cusparseDestroyDnVec")(vector);
      cudaFree(buffer_);
    }

    const Cusparse& sparse_;
    cusparse::SpmvAlgorithm algorithm_;
    cusparse::Sparse a_ = nullptr;
    cusparse::Dense x_ = nullptr, y_ = nullptr;
    void* buffer_ = nullptr;
    double preprocess_ms_ = 0;
    cusparse::Spmv<void*>* multiply_ = Cusparse::function<cusparse::Spmv<void*>>("cusparseSpMV");
  };

  const Cusparse& sparse_;
  SpmvProblem problem_;
  std::unique_ptr<Product> chosen_;
};

// clang-format 14 cannot settle on the comment of an inline namespace.
// clang-format off
}  // namespace aisp::inline AISP_FRONT_END
// clang-format on
