// SPDX-License-Identifier: Apache-2.0
#include "base/math/student.hpp"

#include <gtest/gtest.h>

namespace aisp::base {
namespace {

TEST(Student, IsWhatTablesSay) {
  EXPECT_NEAR(student_t_975(1), 12.706, 0.001);
  EXPECT_NEAR(student_t_975(2), 4.303, 0.001);
  EXPECT_NEAR(student_t_975(3), 3.182, 0.01);
  EXPECT_NEAR(student_t_975(4), 2.776, 0.005);
  EXPECT_NEAR(student_t_975(9), 2.262, 0.001);
  EXPECT_NEAR(student_t_975(30), 2.042, 0.001);
  EXPECT_NEAR(student_t_975(1e9), 1.960, 0.001);
  EXPECT_NEAR(student_t_975(0), 12.706, 0.001);
  EXPECT_NEAR(student_t_995(1), 63.657, 0.001);
  EXPECT_NEAR(student_t_995(3), 5.841, 0.001);
  EXPECT_NEAR(student_t_995(4), 4.604, 0.02);
  EXPECT_NEAR(student_t_995(10), 3.169, 0.001);
  EXPECT_NEAR(student_t_995(1e9), 2.576, 0.001);
}

}  // namespace
}  // namespace aisp::base
