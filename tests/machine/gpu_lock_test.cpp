// SPDX-License-Identifier: Apache-2.0
#include "machine/gpu_lock.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/error.hpp"
#include "machine/fake_root.hpp"

namespace aisp::machine {
namespace {

using testing::HasSubstr;

class GpuLock : public testing::Test {
 protected:
  GpuLock() { ::setenv("AISP_LOCK_DIRECTORY", (root_.path() / "locks").c_str(), 1); }
  ~GpuLock() override { ::unsetenv("AISP_LOCK_DIRECTORY"); }
  FakeRoot root_;
};

base::Error error_of(const std::string& uuid, double timeout_s, const std::function<bool()>& give_up = {}) {
  try {
    lock_gpu(uuid, "second", timeout_s, give_up);
  } catch (const base::Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {base::Exit::good, ""};
}

TEST_F(GpuLock, NamesWhoHoldsTheGpu) {
  const base::FileLock first = lock_gpu("GPU-1", "aisp run --targets ch07");
  const base::Error error = error_of("GPU-1", 0);
  EXPECT_EQ(error.status(), base::Exit::unfit);
  EXPECT_THAT(error.what(), HasSubstr("GPU-1 is in use by process"));
  EXPECT_THAT(error.what(), HasSubstr("aisp run --targets ch07"));
  EXPECT_THAT(error_of("GPU-1", 0.05).what(), HasSubstr("after waiting 50.0 ms"));
  EXPECT_EQ(error_of("GPU-1", 60, [] { return true; }).status(), base::Exit::interrupted);
}

TEST_F(GpuLock, IsOnePerGpu) {
  const base::FileLock first = lock_gpu("GPU-1", "first");
  EXPECT_NO_THROW(lock_gpu("GPU-2", "second"));
  EXPECT_NE(gpu_lock_path("GPU-1"), gpu_lock_path("MIG-1"));
  EXPECT_EQ(gpu_lock_path("a/../b").parent_path(), lock_directory());
}

TEST_F(GpuLock, IsOnePerSliceOfAGpu) {
  // As `nvidia-smi -L` and CUDA name two slices of one GPU.
  const char *first = "MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", *second = "MIG-7b3a2f1e-0c4d-5e6f-8a9b-1c2d3e4f5a6b";
  const base::FileLock held = lock_gpu(first, "first");
  EXPECT_NO_THROW(lock_gpu(second, "beside it"));
  EXPECT_THAT(error_of(first, 0).what(), HasSubstr(first));
  EXPECT_NE(gpu_lock_path("MIG-GPU-1/1/0"), gpu_lock_path("MIG-GPU-1/2/0")) << "as older drivers name them";
}

TEST_F(GpuLock, IsFreeAfterUse) {
  { const base::FileLock first = lock_gpu("GPU-1", "first"); }
  EXPECT_NO_THROW(lock_gpu("GPU-1", "second"));
}

TEST(LockDirectory, IsSharedByAllUsers) {
  ::unsetenv("AISP_LOCK_DIRECTORY");
  const auto folder = lock_directory();
  struct stat status {};
  ASSERT_EQ(::stat(folder.c_str(), &status), 0);
  if (folder != "/tmp/aisp-locks") GTEST_SKIP() << "/tmp cannot be written here";
  EXPECT_EQ(status.st_mode & 07777, 01777u);
}

}  // namespace
}  // namespace aisp::machine
