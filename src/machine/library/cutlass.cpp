// SPDX-License-Identifier: Apache-2.0
// CUTLASS's products, by the table of functions of libaisp_cutlass.so.
#include <aisp/check.hpp>
#include <aisp/libraries/cutlass.hpp>
#include <aisp/libraries/cutlass_sparse.hpp>
#include <aisp/library.hpp>

#include <stdexcept>
#include <string>

#include "libraries/cutlass_table.hpp"

namespace aisp {
namespace {

using libraries::CutlassProduct;
using libraries::CutlassTable;

const CutlassTable& table() {
  const SharedLibrary& library = SharedLibrary::open(Library::cutlass);
  const CutlassTable* found = library.function<libraries::GetCutlassTable>(libraries::get_cutlass_table)();
  if (found->interface != libraries::cutlass_interface)
    throw Unsupported{std::string{library.path()} + " has interface " + std::to_string(found->interface) +
                      " and this executable needs " + std::to_string(libraries::cutlass_interface) + "; " +
                      std::string{get_cutlass}};
  return *found;
}

void check_outcome(int outcome, const libraries::CutlassTrouble& trouble) {
  if (outcome == libraries::cutlass_unsupported) throw Unsupported{trouble.text};
  if (outcome == libraries::cutlass_failed) throw std::runtime_error{trouble.text};
  check(static_cast<cudaError_t>(outcome));
}

class OpenedPlan final : public CutlassPlan {
 public:
  explicit OpenedPlan(const libraries::CutlassRequest& request) : table_{table()} {
    libraries::CutlassTrouble trouble{};
    check_outcome(table_.plan(&request, &plan_, &trouble), trouble);
  }
  ~OpenedPlan() override { table_.destroy(plan_); }
  OpenedPlan(const OpenedPlan&) = delete;
  OpenedPlan& operator=(const OpenedPlan&) = delete;

  void run(cudaStream_t stream) override {
    libraries::CutlassTrouble trouble{};
    check_outcome(table_.run(plan_, stream, &trouble), trouble);
  }

 private:
  const CutlassTable& table_;
  CutlassPlan* plan_ = nullptr;
};

std::unique_ptr<CutlassPlan> plan(CutlassProduct product, const CutlassProblem& problem) {
  return std::make_unique<OpenedPlan>(libraries::CutlassRequest{.product = product, .problem = problem});
}

}  // namespace

std::unique_ptr<CutlassPlan> plan_cutlass_bf16(const CutlassProblem& problem) { return plan(CutlassProduct::bf16, problem); }
std::unique_ptr<CutlassPlan> plan_cutlass_multistage(const CutlassProblem& problem) {
  return plan(CutlassProduct::multistage, problem);
}
std::unique_ptr<CutlassPlan> plan_cutlass_sm100(const CutlassProblem& problem) { return plan(CutlassProduct::sm100, problem); }
std::unique_ptr<CutlassPlan> plan_cutlass_fp8(const CutlassProblem& problem) { return plan(CutlassProduct::fp8, problem); }

std::unique_ptr<CutlassPlan> plan_cutlass_block_scaled(const CutlassProblem& problem, const float* a_scales,
                                                       const float* b_scales) {
  return std::make_unique<OpenedPlan>(libraries::CutlassRequest{
      .product = CutlassProduct::block_scaled, .problem = problem, .a_scales = a_scales, .b_scales = b_scales});
}

std::unique_ptr<CutlassPlan> plan_cutlass_sparse(const CutlassProblem& problem, cudaStream_t stream) {
  return std::make_unique<OpenedPlan>(
      libraries::CutlassRequest{.product = CutlassProduct::sparse, .problem = problem, .stream = stream});
}

std::string_view cutlass_version() { return table().version; }

}  // namespace aisp
