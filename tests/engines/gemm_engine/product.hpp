// SPDX-License-Identifier: Apache-2.0
// A product as these pairs compare it: by cuBLASLt as its heuristic chooses and as the fastest of its proposals, by the engine in
// its usual shape and in the fastest of its shapes.
#pragma once
#include <aisp/libraries/cublaslt.hpp>

#include <optional>
#include <string_view>

#include "choice.hpp"

namespace aisp::gemm_engine {

class ProductWorkload : public Workload {
 public:
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant.starts_with("engine")) choice_.report(variant == "engine_tuned", "band", metrics);
  }

  void cublaslt(Launch& launch) { library_->run(launch, a_, b_, c_, alpha_); }
  void tune(Launch& launch) { library_->tune(launch, a_, b_, c_); }
  void cublaslt_tuned(Launch& launch) { library_->run_tuned(launch, a_, b_, c_, alpha_); }
  void engine(Launch& launch) { choice_.run_usual(launch); }
  void choose(Launch& launch) { choice_.choose(launch); }
  void engine_tuned(Launch& launch) { choice_.run_chosen(launch); }

 protected:
  explicit ProductWorkload(Setup& setup) : choice_{setup} {}

  // Declares the product for the library, in a derived class's constructor.
  void compare_with(Setup& setup, const MatmulProblem& problem, const void* a, const void* b, void* c, float alpha = 1) {
    library_.emplace(setup, problem);
    a_ = a, b_ = b, c_ = c, alpha_ = alpha;
  }
  // The engine with tiles C, in bands of several heights.
  template <class C, class Store, class Epilogue = gemm::Identity, class Problem>
  void add(const Problem& problem, const Epilogue& epilogue = {}) {
    for (const int band : {8, 4, 16}) {
      const gemm::Gemm<C, gemm::Bands, Epilogue, Store> product{problem, {.band = band}};
      choice_.add({shape_of<C>(), band, [product, epilogue](cudaStream_t stream) { product.run(stream, epilogue); }});
    }
  }

 private:
  Choice choice_;
  std::optional<LibraryMatmul> library_;
  const void *a_ = nullptr, *b_ = nullptr;
  void* c_ = nullptr;
  float alpha_ = 1;
};

inline constexpr KernelLimits nothing_spilled{.local_bytes = 0};

inline constexpr Variant library_default{
    .name = "cublaslt", .run = call<&ProductWorkload::cublaslt>, .needs = {.libraries = {Library::cublaslt}}};
inline constexpr Variants library_tuned = variants({{.name = "cublaslt_tuned",
                                                     .run = call<&ProductWorkload::cublaslt_tuned>,
                                                     .prepare = call<&ProductWorkload::tune>,
                                                     .needs = {.libraries = {Library::cublaslt}}}});
inline constexpr Variants engine_variants =
    variants({{.name = "engine", .run = call<&ProductWorkload::engine>, .needs = {.dsmem = true}, .kernels = nothing_spilled},
              {.name = "engine_tuned",
               .run = call<&ProductWorkload::engine_tuned>,
               .prepare = call<&ProductWorkload::choose>,
               .needs = {.dsmem = true},
               .kernels = nothing_spilled}});

}  // namespace aisp::gemm_engine
