// SPDX-License-Identifier: Apache-2.0
// A GPU test with cuBLASLt, which skips itself where the library is absent.
#pragma once
#include <aisp/libraries/cublaslt.hpp>

#include <memory>

#include "device/gpu_test.hpp"
#include "plain_setup.hpp"

namespace aisp::training::test {

template <int least_major>
class LtTest : public GpuTest<least_major> {
 protected:
  void SetUp() override {
    GpuTest<least_major>::SetUp();
    if (this->IsSkipped()) return;
    try {
      SharedLibrary::open(Library::cublaslt);
    } catch (const Unsupported& reason) {
      GTEST_SKIP() << reason.what();
    }
    setup_ = std::make_unique<PlainSetup>();
    lt_ = std::make_unique<Opened<CublasLt>>(*setup_);
  }

  std::unique_ptr<PlainSetup> setup_;
  std::unique_ptr<Opened<CublasLt>> lt_;
};

}  // namespace aisp::training::test
